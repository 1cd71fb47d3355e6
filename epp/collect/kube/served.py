"""A resource that stands in one of several API groups: the first that can be read counts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec

from epp.kube.client import Kube
from epp.kube.reflect import Habits, Reflector

POLL_SECONDS = 0.05

State = Literal["waiting", "served", "missing", "forbidden"]


class Served:
    """Follows one resource in the first of its groups that can be read.

    An older group is only looked at if the newer one cannot be read: its CRD is not installed, or
    our role does not name it (then the server says 403 before it says 404). If the newer one turns
    up later, it counts from then on.

    Args:
        kube: the client.
        paths: of the collections, the newest group first.
        field_selector: which objects; "" for all.
        habits: what is kept of an object, and times; what is kept has a ``name``.
    """

    def __init__(
        self, kube: Kube, paths: Sequence[str], *, field_selector: str = "", habits: Habits
    ) -> None:
        self.changes = 0  #: counts what was heard, so that a reader knows when to look again
        self._versions = [_Version(kube, path, field_selector, self._changed, habits)
                          for path in paths]  # fmt: skip

    async def run(self) -> None:
        """Follow the resource until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for version in self._versions:
                tasks.create_task(version.reflector.run(), name=f"watch {version.path}")
                if await version.can_be_read():
                    return

    @property
    def state(self) -> State:
        """How things are; "waiting" until the server has said something on each group needed."""
        if self._active is not None:
            return "served"
        reflectors = [version.reflector for version in self._versions]
        if not all(reflector.missing or reflector.forbidden for reflector in reflectors):
            return "waiting"
        return "forbidden" if self.forbidden else "missing"

    @property
    def forbidden(self) -> str:
        """What the server said when it refused; "" if it does not refuse now."""
        return next((v.reflector.forbidden for v in self._versions if v.reflector.forbidden), "")

    @property
    def path(self) -> str:
        """The collection that counts, the newest one if none does."""
        return (self._active or self._versions[0]).path

    def objects(self) -> list[Any]:
        """What is kept of each object."""
        active = self._active
        return [] if active is None else list(active.objects.values())

    @property
    def _active(self) -> _Version | None:
        for version in self._versions:
            if version.reflector.synced and (version.objects or not version.reflector.missing):
                return version
        return None

    def _changed(self) -> None:
        self.changes += 1


class _Version:
    """The resource in one group."""

    def __init__(
        self,
        kube: Kube,
        path: str,
        field_selector: str,
        changed: Callable[[], None],
        habits: Habits,
    ) -> None:
        self.path = path
        self.objects: dict[str, Any] = {}
        self._changed = changed
        self.reflector = Reflector(
            kube,
            path,
            field_selector=field_selector,
            on_put=self._put,
            on_gone=self._gone,
            habits=msgspec.structs.replace(habits, on_synced=changed),
        )

    async def can_be_read(self) -> bool:
        """Wait for the server's first word on it."""
        reflector = self.reflector
        while not (reflector.synced or reflector.missing or reflector.forbidden):  # noqa: ASYNC110
            await asyncio.sleep(POLL_SECONDS)  # three flags of the reflector, and none tells
        return reflector.synced

    def _put(self, kept: Any) -> None:
        self.objects[kept.name] = kept
        self._changed()

    def _gone(self, kept: Any) -> None:
        if self.objects.pop(kept.name, None) is not None:
            self._changed()
