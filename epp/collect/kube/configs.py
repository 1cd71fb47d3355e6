"""The ConfigMaps that hold configurations of pools: each that a pool names is watched by its name.

So the picker needs no right to read the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import msgspec

from epp.kube.client import Kube
from epp.kube.reflect import Habits, Reflector

WAIT_SECONDS = 5.0  #: for the first word about a ConfigMap; after that its pool is served without


class Config(msgspec.Struct, frozen=True):
    """A pool's configuration, or why it has none of its own."""

    text: str | None = None  #: None: that of the process
    source: str = ""  #: where ``text`` is from
    problem: str = ""  #: why what the pool names is not used


NONE = Config()


class _Kept(msgspec.Struct, frozen=True):
    """A ConfigMap."""

    texts: Mapping[str, str]


class ConfigMaps:
    """Follows the ConfigMaps that pools name.

    Args:
        kube: the client.
        namespace: of the pools.
        tasks: where the watches run.
        habits: of the watches.
    """

    def __init__(
        self, kube: Kube, namespace: str, tasks: asyncio.TaskGroup, *, habits: Habits
    ) -> None:
        self.changes = 0  #: counts what was heard
        self._watch = partial(Reflector, kube, f"/api/v1/namespaces/{namespace}/configmaps")
        self._tasks = tasks
        self._habits = habits
        self._followed: dict[str, _Followed] = {}

    def told(self, reference: str) -> Config | None:
        """Return the configuration at ``CONFIGMAP`` or ``CONFIGMAP/KEY``; None: it is waited for."""
        if not reference:
            return NONE
        name, _, key = reference.partition("/")
        followed = self._followed.get(name)
        if followed is None:
            followed = self._followed[name] = self._follow(name)
        return followed.told(key)

    def keep_only(self, references: Iterable[str]) -> None:
        """Follow no others any longer."""
        names = {reference.partition("/")[0] for reference in references}
        for name in [name for name in self._followed if name not in names]:
            self._followed.pop(name).stop()

    def _follow(self, name: str) -> _Followed:
        followed = _Followed(name, self._watch, self._habits, self._changed)
        followed.task = self._tasks.create_task(followed.run(), name=f"watch ConfigMap {name}")
        return followed

    def _changed(self) -> None:
        self.changes += 1


class _Followed:
    """One ConfigMap."""

    def __init__(
        self,
        name: str,
        watch: Callable[..., Reflector],
        habits: Habits,
        changed: Callable[[], None],
    ) -> None:
        self.task: asyncio.Task[None] | None = None
        self._name = name
        self._changed = changed
        self._clock = habits.clock
        self._began = habits.clock.now()
        self._kept: _Kept | None = None
        self._reflector = watch(
            field_selector=f"metadata.name={name}",
            on_put=self._put,
            on_gone=self._gone,
            habits=msgspec.structs.replace(habits, keep=_keep, on_synced=changed),
        )

    async def run(self) -> None:
        """Follow it until cancelled."""
        await self._reflector.run()

    def stop(self) -> None:
        """Follow it no longer."""
        if self.task is not None:
            self.task.cancel()

    def _put(self, kept: _Kept) -> None:
        self._kept = kept
        self._changed()

    def _gone(self, _kept: _Kept) -> None:
        self._kept = None
        self._changed()

    @property
    def _waiting(self) -> bool:
        """Whether its first word is still to come, and may."""
        reflector = self._reflector
        heard = reflector.synced or reflector.forbidden or reflector.missing
        return not heard and self._clock.now() - self._began < WAIT_SECONDS

    def told(self, key: str) -> Config | None:
        """What stands at ``key``, "" for the only one; None: it is waited for."""
        if self._kept is not None:
            return _chosen(self._name, self._kept.texts, key)
        if self._waiting:
            return None
        if self._reflector.forbidden:
            said = self._reflector.forbidden
            return Config(
                problem=f"ConfigMap {self._name}: its role needs list and watch on it ({said})"
            )
        if not self._reflector.synced:
            return Config(problem=f"ConfigMap {self._name} cannot be read yet")
        return Config(problem=f"there is no ConfigMap {self._name}")


def _keep(manifest: dict[str, Any]) -> _Kept:
    data = manifest.get("data")
    texts = data if isinstance(data, dict) else {}
    return _Kept({key: text for key, text in texts.items() if isinstance(text, str)})


def _chosen(name: str, texts: Mapping[str, str], key: str) -> Config:
    """The text of ``key``, or the only one there is."""
    if not key and len(texts) == 1:
        key = next(iter(texts))
    if key in texts:
        return Config(texts[key], f"ConfigMap {name}/{key}")
    has = ", ".join(sorted(texts)) or "nothing"
    what = f"has no key {key!r}" if key else "needs a key, as in CONFIGMAP/KEY"
    return Config(problem=f"ConfigMap {name} {what}: it has {has}")
