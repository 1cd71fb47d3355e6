"""How to reach the API server: from inside a pod, or as a kubeconfig says.

**Source:** the order of places is controller-runtime's ``config.GetConfig``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from epp.errors import ConfigError
from epp.kube.identity import kubeconfig as files
from epp.kube.identity.credentials import Credentials, Pem, TokenFile
from epp.kube.identity.tls import Trust
from epp.model import join_host_port

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class Access(msgspec.Struct, frozen=True):
    """A server, and who we are to it."""

    server: str  #: ``https://host:port``, perhaps with a path; no slash at its end
    namespace: str  #: of the service account or of the kubeconfig's context
    credentials: Credentials
    trust: Trust = Trust()
    proxy: str = ""  #: the kubeconfig's; the environment's proxies are never used
    found_in: str = ""  #: for people


def find_access(
    kubeconfig: str = "",
    *,
    environment: Mapping[str, str] = os.environ,
    service_account: Path = SERVICE_ACCOUNT,
) -> Access:
    """Find the cluster: ``kubeconfig``, ``$KUBECONFIG``, the pod's own, ``~/.kube/config``.

    Raises:
        ConfigError: there is none, or the first one found cannot be used.
    """
    if kubeconfig:
        return _from_files((kubeconfig,), environment)
    listed = tuple(path for path in environment.get("KUBECONFIG", "").split(os.pathsep) if path)
    if listed:
        return _from_files(listed, environment)
    if environment.get("KUBERNETES_SERVICE_HOST"):
        return _from_pod(environment, service_account)
    home = Path(environment.get("HOME") or "/", ".kube", "config")
    if home.is_file():
        return _from_files((str(home),), environment)
    raise ConfigError(
        "no Kubernetes cluster: no --kubeconfig, no KUBECONFIG, no KUBERNETES_SERVICE_HOST"
        f" (set inside a pod), and no {home}"
    )


def _from_files(paths: tuple[str, ...], environment: Mapping[str, str]) -> Access:
    chosen = files.read(paths)
    return Access(
        server=chosen.server(),
        namespace=chosen.namespace(),
        credentials=chosen.credentials(environment),
        trust=chosen.trust(),
        proxy=chosen.proxy(),
        found_in=os.pathsep.join(paths),
    )


def _from_pod(environment: Mapping[str, str], folder: Path) -> Access:
    token, authority, namespace = (folder / name for name in ("token", "ca.crt", "namespace"))
    for path in (token, authority):
        if not path.is_file():
            raise ConfigError(
                f"KUBERNETES_SERVICE_HOST is set, but there is no {path}:"
                " is automountServiceAccountToken false?"
            )
    port = environment.get("KUBERNETES_SERVICE_PORT") or "443"
    if not (port.isascii() and port.isdigit()):
        raise ConfigError(f"KUBERNETES_SERVICE_PORT is no port: {port!r}")
    return Access(
        server=f"https://{join_host_port(environment['KUBERNETES_SERVICE_HOST'], int(port))}",
        namespace=_text(namespace) or "default",
        credentials=TokenFile(str(token)),
        trust=Trust(Pem(path=str(authority))),
        found_in=str(folder),
    )


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
