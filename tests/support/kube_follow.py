"""A reflector that follows the fake API server's pods, and what it tells."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from epp.kube.client import Kube
from epp.kube.pace import Backoff, Pace
from epp.kube.reflect import Habits, Reflector
from tests.support.kube import FakeKube
from tests.support.pages import until

PODS = "/api/v1/namespaces/default/pods"
QUICK = Pace(
    page=3,
    call=1.0,
    watch=5.0,
    grace=0.2,
    relist=60.0,
    missing=0.1,
    steady=0.5,
    backoff=Backoff(first=0.02, limit=0.1, longest_asked=2.0),
)


def pod(name: str, **more: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, **more}, "spec": {}, "status": {}}


class Followed:
    """A reflector that runs, and what it told."""

    def __init__(self, kube: Kube, **options: Any) -> None:
        self.now: dict[str, dict[str, Any]] = {}
        self.told: list[str] = []
        self.lists = 0
        keep = options.pop("keep", lambda it: it)
        pace = options.pop("pace", QUICK)
        self.reflector = Reflector(
            kube,
            options.pop("path", PODS),
            on_put=self._put,
            on_gone=self._gone,
            habits=Habits(keep=keep, on_synced=self._listed, pace=pace),
            **options,
        )

    @property
    def names(self) -> set[str]:
        return set(self.now)

    def _put(self, it: dict[str, Any]) -> None:
        self.told.append(f"+{it['metadata']['name']}")
        self.now[it["metadata"]["name"]] = it

    def _gone(self, it: dict[str, Any]) -> None:
        self.told.append(f"-{it['metadata']['name']}")
        del self.now[it["metadata"]["name"]]

    def _listed(self) -> None:
        self.lists += 1


@asynccontextmanager
async def following(server: FakeKube, **options: Any) -> AsyncIterator[Followed]:
    """A reflector over ``server``'s pods, stopped at the end."""
    access = server.access(options.pop("token", ""))
    async with Kube(access, seconds=options.pop("seconds", 5.0)) as kube:
        followed = Followed(kube, **options)
        task = asyncio.create_task(followed.reflector.run())
        try:
            yield followed
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


@asynccontextmanager
async def settled(server: FakeKube, *names: str, **options: Any) -> AsyncIterator[Followed]:
    """The same once it has read these pods and watches."""
    for name in names:
        server.put(PODS, pod(name))
    async with following(server, **options) as followed:
        await until(lambda: followed.reflector.synced and server.watching == 1)
        assert followed.names == set(names)
        yield followed
