"""The chart's objects in a namespace of their own, and the picker's account in them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

from tests.support.chart import Objects, container, one, render
from tests.support.cluster.admin import Admin, NotServed, Object
from tests.support.cluster.server import Server

RELEASE = "pool"
LABELS = {"app": "engine"}
ENGINES = "engines"  #: the service account of their pods
LOCAL = ("--grpc-port", "--grpc-health-port", "--metrics-port", "--secure-serving", "--cert-path")
NOT_MADE = {"Deployment"}  #: the picker is a process here


class Installed:
    """A release in a namespace.

    Attributes:
        made: paths of what was created, in order; whoever creates more adds it.
    """

    def __init__(self, server: Server, admin: Admin, namespace: str, objects: Objects) -> None:
        self.server = server
        self.admin = admin
        self.namespace = namespace
        self.objects = objects
        self.made: list[str] = []

    @property
    def pool(self) -> str:
        """The InferencePool's name."""
        return RELEASE

    @property
    def account(self) -> str:
        return str(one(self.objects, "ServiceAccount")["metadata"]["name"])

    @property
    def arguments(self) -> list[str]:
        """What the chart starts the picker with, but for ports and certificates."""
        given = container(self.objects)["args"]
        return [each for each in given if not each.startswith(LOCAL)]

    def path(self, at: str, plural: str, name: str = "") -> str:
        """Of a collection in the namespace, or of an object: ``path("v1", "pods", "a")``."""
        base = f"/apis/{at}" if "/" in at else f"/api/{at}"
        return f"{base}/namespaces/{self.namespace}/{plural}" + (f"/{name}" if name else "")

    async def add(self, it: Object) -> str:
        """Create an object; return its path."""
        about = {**it["metadata"], "namespace": self.namespace}
        await self.admin.create({**it, "metadata": about}, self.namespace)
        path = f"{await self.admin.path_of(it, self.namespace)}/{it['metadata']['name']}"
        self.made.append(path)
        return path

    async def remove(self, path: str) -> None:
        """Delete an object that was made."""
        await self.admin.delete(path)
        self.made.remove(path)

    async def apply(self, it: Object) -> None:
        """Apply one of the chart's objects."""
        await self.admin.apply(it, self.namespace)
        path = f"{await self.admin.path_of(it, self.namespace)}/{it['metadata']['name']}"
        self.made.append(path)

    async def kubeconfig(self, file: Path, server: Server | None = None) -> Path:
        """A file for the picker: its account's token is all it has."""
        token = await self.admin.token_of(self.namespace, self.account)
        return (server or self.server).kubeconfig(file, self.namespace, token)


@contextlib.asynccontextmanager
async def namespace(admin: Admin) -> AsyncIterator[tuple[str, list[str]]]:
    """A namespace of its own, and the list of what is to be deleted with it."""
    name = f"epp-test-{uuid4().hex[:8]}"
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    await admin.create(space, "")
    made: list[str] = []
    try:
        yield name, made
    finally:
        await admin.empty(name, made)


@contextlib.asynccontextmanager
async def installed(
    server: Server, admin: Admin, port: int, values: Mapping[str, Any] | None = None
) -> AsyncIterator[Installed]:
    """The chart's release, whose pool asks pods with `LABELS` on ``port``."""
    pool = {"matchLabels": LABELS, "targetPorts": [{"number": port}]}
    async with namespace(admin) as (name, made):
        objects = render({"pool": pool, **(values or {})}, release=RELEASE, namespace=name)
        it = Installed(server, admin, name, objects)
        it.made = made
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": ENGINES}}
        await it.add(account)
        for each in objects:
            if each["kind"] not in NOT_MADE:
                with contextlib.suppress(NotServed):
                    await it.apply(each)
        yield it
