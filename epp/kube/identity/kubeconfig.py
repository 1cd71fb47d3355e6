"""Kubeconfig files: several are merged, the first to name a thing wins.

**Source:** kubernetes.io, "Organizing Cluster Access Using kubeconfig Files", and the v1 Config
reference. Not taken: user names with passwords and ``auth-provider``, which Kubernetes dropped.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from epp.errors import ConfigError
from epp.kube.identity.credentials import Credential, Credentials, Fixed, Pem, TokenFile
from epp.kube.identity.exec_plugin import Exec, ExecPlugin
from epp.kube.identity.tls import Trust


class _Kebab(msgspec.Struct, rename="kebab"):
    """Fields are written with hyphens."""


class Cluster(_Kebab):
    server: str = ""
    certificate_authority: str | None = None
    certificate_authority_data: str | None = None
    insecure_skip_tls_verify: bool | None = None
    tls_server_name: str | None = None
    proxy_url: str | None = None


class User(_Kebab):
    client_certificate: str | None = None
    client_certificate_data: str | None = None
    client_key: str | None = None
    client_key_data: str | None = None
    token: str | None = None
    token_file: str | None = msgspec.field(name="tokenFile", default=None)
    exec: Exec | None = None
    auth_provider: dict[str, object] | None = None

    def __repr__(self) -> str:
        return "User(...)"


class Context(msgspec.Struct):
    cluster: str = ""
    user: str | None = None
    namespace: str | None = None


class NamedCluster(msgspec.Struct):
    name: str
    cluster: Cluster | None = None


class NamedUser(msgspec.Struct):
    name: str
    user: User | None = None


class NamedContext(msgspec.Struct):
    name: str
    context: Context | None = None


class File(_Kebab):
    """One kubeconfig file."""

    clusters: list[NamedCluster] | None = None
    users: list[NamedUser] | None = None
    contexts: list[NamedContext] | None = None
    current_context: str | None = None


class Placed(msgspec.Struct, frozen=True):
    """The chosen context's parts, and the folders that their relative paths are meant from."""

    cluster: Cluster
    cluster_at: Path
    user: User
    user_at: Path
    of_namespace: str
    named: str  #: the files and the context, for errors

    def server(self) -> str:
        """The server's address, without a slash at its end."""
        server = self.cluster.server.rstrip("/")
        if not server.startswith(("https://", "http://")):
            raise ConfigError(f"{self.named}: server must be an http(s) address, not {server!r}")
        return server

    def namespace(self) -> str:
        """The context's namespace."""
        return self.of_namespace or "default"

    def proxy(self) -> str:
        """The cluster's proxy, "" for none."""
        proxy = self.cluster.proxy_url or ""
        if proxy and not proxy.startswith(("http://", "https://")):
            raise ConfigError(f"{self.named}: proxy-url must begin with http:// or https://")
        return proxy

    def trust(self) -> Trust:
        """How the server is known."""
        cluster = self.cluster
        authority = self._pem(
            "certificate-authority",
            (cluster.certificate_authority, cluster.certificate_authority_data),
            self.cluster_at,
        )
        skip = bool(cluster.insecure_skip_tls_verify)
        if skip and authority:
            raise ConfigError(
                f"{self.named}: insecure-skip-tls-verify and a certificate-authority exclude"
                " each other"
            )
        return Trust(authority, skip, cluster.tls_server_name or "")

    def credentials(self, environment: Mapping[str, str]) -> Credentials:
        """The user's credentials; a certificate and a token may go together."""
        user = self.user
        if user.auth_provider is not None:
            raise ConfigError(f"{self.named}: auth-provider is not supported; use exec")
        shown = Credential(certificate=self._certificate(), key=self._key())
        if bool(shown.certificate) != bool(shown.key):
            raise ConfigError(f"{self.named}: client-certificate and client-key go together")
        if user.exec is not None:
            return ExecPlugin(user.exec, self.user_at, environment)
        if user.token_file:
            return TokenFile(str(self.user_at / user.token_file), shown)
        return Fixed(msgspec.structs.replace(shown, token=(user.token or "").strip()))

    def _certificate(self) -> Pem:
        user = self.user
        both = user.client_certificate, user.client_certificate_data
        return self._pem("client-certificate", both, self.user_at)

    def _key(self) -> Pem:
        user = self.user
        return self._pem("client-key", (user.client_key, user.client_key_data), self.user_at)

    def _pem(self, name: str, given: tuple[str | None, str | None], folder: Path) -> Pem:
        path, data = given
        if data:  # it overrides the file
            try:
                return Pem(text=base64.b64decode(data, validate=True).decode())
            except (binascii.Error, ValueError):
                raise ConfigError(f"{self.named}: {name}-data is not base64 of PEM") from None
        return Pem(path=str(folder / path)) if path else Pem()


def read(paths: tuple[str, ...]) -> Placed:
    """The current context of the merged files; missing ones are skipped if another is there.

    Raises:
        ConfigError: a file cannot be read, or what the context names is nowhere.
    """
    files = [(Path(path).resolve().parent, _decode(path)) for path in paths if Path(path).exists()]
    where = f"kubeconfig {', '.join(paths)}"
    if not files:
        raise ConfigError(f"{where}: no such file")
    current = next((file.current_context for _, file in files if file.current_context), None)
    if current is None:
        raise ConfigError(f"{where}: no current-context")
    contexts = [(at, each.name, each.context) for at, file in files for each in file.contexts or ()]
    _, context = _named(contexts, current, f"{where}: context")
    where = f"{where}, context {current}"
    clusters = [(at, each.name, each.cluster) for at, file in files for each in file.clusters or ()]
    cluster_at, cluster = _named(clusters, context.cluster, f"{where}: cluster")
    users = [
        (at, each.name, each.user or User()) for at, file in files for each in file.users or ()
    ]
    user_at, user = Path(), User()
    if context.user:
        user_at, user = _named(users, context.user, f"{where}: user")
    return Placed(cluster, cluster_at, user, user_at, context.namespace or "", where)


Thing = TypeVar("Thing")


def _named(
    every: Sequence[tuple[Path, str, Thing | None]], name: str, what: str
) -> tuple[Path, Thing]:
    for at, each, thing in every:
        if each == name and thing is not None:
            return at, thing
    raise ConfigError(f"{what} {name!r} is not defined")


def _decode(path: str) -> File:
    try:
        return msgspec.yaml.decode(Path(path).read_bytes(), type=File | None) or File()
    except msgspec.ValidationError as error:
        raise ConfigError(f"kubeconfig {path}: {error}") from None
    except msgspec.DecodeError:  # YAML's message quotes the line, which may hold a credential
        raise ConfigError(f"kubeconfig {path}: is not YAML") from None
    except OSError as error:
        raise ConfigError(f"kubeconfig {path}: {error.strerror}") from None
