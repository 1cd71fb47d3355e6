"""The API server of a run: the one that ``TEST_KUBECONFIG`` names, else the strict fake."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import yaml

from epp.kube.access import Access, find_access
from epp.kube.client import Kube
from epp.kube.identity.credentials import Credential, Fixed
from tests.support.apiserver.rights import ADMIN
from tests.support.apiserver.strict import StrictKube
from tests.support.cluster.admin import Admin
from tests.support.relay import Relay

VARIABLE = "TEST_KUBECONFIG"


class Server:
    """An API server, how an administrator reaches it, and how others are told of it."""

    def __init__(self, access: Access, entry: dict[str, Any], fake: StrictKube | None) -> None:
        self.access = access
        self.entry = entry  #: a kubeconfig's ``cluster``
        self.fake = fake  #: None: it is a real one

    def through(self, relay: Relay) -> Self:
        """The same server by way of a relay."""
        parts = urlsplit(self.entry["server"])
        relay.host = parts.hostname or ""
        relay.target = parts.port or (443 if parts.scheme == "https" else 80)
        entry = {**self.entry, "server": f"{parts.scheme}://127.0.0.1:{relay.port}{parts.path}"}
        if parts.scheme == "https":
            entry.setdefault("tls-server-name", parts.hostname)
        return type(self)(self.access, entry, self.fake)

    def kubeconfig(self, file: Path, namespace: str, token: str) -> Path:
        """Write ``file`` for the owner of a token."""
        context = {"cluster": "tested", "user": "account", "namespace": namespace}
        file.write_text(yaml.safe_dump({
            "apiVersion": "v1", "kind": "Config", "current-context": "tested",
            "contexts": [{"name": "tested", "context": context}],
            "clusters": [{"name": "tested", "cluster": self.entry}],
            "users": [{"name": "account", "user": {"token": token}}],
        }))  # fmt: skip
        file.chmod(0o600)
        return file


@contextlib.asynccontextmanager
async def api_server() -> AsyncIterator[tuple[Server, Admin]]:
    """The server, and an administrator who has had the CRDs defined."""
    async with _server() as server, Kube(server.access) as kube:
        admin = Admin(kube)
        await admin.define()
        yield server, admin


@contextlib.asynccontextmanager
async def _server() -> AsyncIterator[Server]:
    file = os.environ.get(VARIABLE, "")
    if file:
        yield Server(find_access(file), _entry(Path(file)), None)
        return
    async with StrictKube() as fake:
        access = Access(fake.url, "default", Fixed(Credential(ADMIN)))
        yield Server(access, {"server": fake.url}, fake)


def _entry(file: Path) -> dict[str, Any]:
    """The ``cluster`` of a kubeconfig's current context, its paths made absolute."""
    told = yaml.safe_load(file.read_text())
    context = next(c for c in told["contexts"] if c["name"] == told["current-context"])
    name = context["context"]["cluster"]
    entry = dict(next(c for c in told["clusters"] if c["name"] == name)["cluster"])
    if authority := entry.get("certificate-authority"):
        entry["certificate-authority"] = str((file.resolve().parent / authority).resolve())
    return entry
