"""A release that runs in a cluster with nodes: its pods are Deployments', its gateway is not ours.

`tests/kind/run` makes one. What is not asked of the API server is asked through the gateway.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

from tests.support.cluster.install import LABELS, Installed
from tests.support.cluster.server import api_server
from tests.support.serving import eventually

PORT, NAMESPACE = "TEST_GATEWAY_PORT", "TEST_NAMESPACE"
MOST = 10  #: pods, however many a case asks for: a node has to hold them
ENGINES = "engines"  #: the Deployment
STAMP = "epp.example.org/rolled"
READY_SECONDS = 180.0
HEARD_SECONDS = 1.0  #: from a pod's readiness to the picker and the gateway


class Deployed:
    """The release, by its Deployments."""

    def __init__(self, release: Installed, port: int) -> None:
        self.release = release
        self.port = port  #: on this machine, forwarded to the gateway
        self.names: list[str] = []

    async def scale(self, count: int) -> list[str]:
        """Have so many engines, or as many as there is room for."""
        self._wanted = min(count, MOST)
        await self._patch({"replicas": self._wanted})
        return await self._settled(set())

    async def roll(self, *, surge: int) -> None:
        """Replace all engines' pods; how many at a time is the Deployment's."""
        old = set(self.names)
        stamp = {"annotations": {STAMP: datetime.now(UTC).isoformat()}}
        await self._patch({"template": {"metadata": stamp}})
        await self._settled(old)

    async def _patch(self, spec: dict[str, Any]) -> None:
        path = self.release.path("apps/v1", "deployments", ENGINES)
        await self.release.admin.patch(path, {"spec": spec})

    async def _settled(self, gone: set[str]) -> list[str]:
        """Wait until all that should be there is, and nothing else; return the names."""

        async def there() -> bool:
            pods = await self._pods()
            self.names = [each["metadata"]["name"] for each in pods]
            settled = len(pods) == self._wanted and gone.isdisjoint(self.names)
            return settled and all(map(_ready, pods))

        await eventually(there, bound=READY_SECONDS, every=0.5)
        await asyncio.sleep(HEARD_SECONDS)
        return list(self.names)

    async def _pods(self) -> list[dict[str, Any]]:
        selector = ",".join(f"{key}={value}" for key, value in LABELS.items())
        path = self.release.path("v1", "pods")
        found = await self.release.admin.kube.get(path, labelSelector=selector)
        return list(found["items"])


@contextlib.asynccontextmanager
async def deployed(count: int) -> AsyncIterator[Deployed]:
    """The release that the environment names, with ``count`` engines."""
    async with api_server() as (server, admin):
        release = Installed(server, admin, os.environ[NAMESPACE], [])
        it = Deployed(release, int(os.environ[PORT]))
        await it.scale(count)
        try:
            yield it
        finally:
            for path in release.made:
                await admin.delete(path)


def _ready(pod: dict[str, Any]) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return "deletionTimestamp" not in pod["metadata"] and any(
        each["type"] == "Ready" and each["status"] == "True" for each in conditions
    )
