"""The copy of a collection, and what of it changed; pure."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Any, Literal, TypeAlias

import msgspec

Key: TypeAlias = tuple[str, str]  #: namespace ("" if the object has none) and name


class About(msgspec.Struct, frozen=True):
    """An object's metadata, as far as it is used."""

    name: str
    namespace: str = ""
    uid: str = ""
    version: str = msgspec.field(name="resourceVersion", default="")

    @property
    def key(self) -> Key:
        """What the object is called."""
        return self.namespace, self.name


class Change(msgspec.Struct, frozen=True):
    """What a listener must be told."""

    kind: Literal["put", "gone"]
    value: Any


class Copy:
    """The objects of a collection, as far as they were heard of."""

    def __init__(self) -> None:
        self._kept: dict[Key, tuple[About, Any]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def has(self, about: About) -> bool:
        """Whether the copy holds exactly this version of the object."""
        kept = self._kept.get(about.key)
        return kept is not None and kept[0] == about and bool(about.version)

    def put(self, about: About, value: Any) -> list[Change]:
        """Take an object; one of the same name that was created anew is gone first."""
        old = self._kept.get(about.key)
        self._kept[about.key] = about, value
        if old is not None and old[0].uid != about.uid:
            return [Change("gone", old[1]), Change("put", value)]
        return [Change("put", value)]

    def remove(self, key: Key) -> list[Change]:
        """Drop an object if it is there."""
        old = self._kept.pop(key, None)
        return [] if old is None else [Change("gone", old[1])]

    def keep_only(self, keys: AbstractSet[Key]) -> list[Change]:
        """Drop all others: they disappeared while nobody was told."""
        others = [key for key in self._kept if key not in keys]
        return [change for key in others for change in self.remove(key)]
