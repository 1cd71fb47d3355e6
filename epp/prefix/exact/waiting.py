"""Blocks that were told before the block they follow, until that one is told too.

A picker that joined late, or whose messages came out of order, hears of blocks whose parent
it does not know, so it cannot name them. They wait here with their tokens, the only place
where tokens stay, in a room of bounded size that all endpoints share; the longest waiting
of an endpoint are dropped first. A removal of a block that waits is remembered: it may be gone
before it has a name.
"""

from __future__ import annotations

from collections.abc import Iterator

from epp.prefix.exact.events import Stored
from epp.prefix.exact.handles import handle, salt

MOST_BYTES = 64 << 20
EVENT_BYTES = 400  #: of a waiting event beside its tokens
HASH_BYTES = 150  #: of a block that waits, in all places where it is remembered


class Room:
    """How much may wait, of all endpoints together."""

    def __init__(self, most: int = MOST_BYTES) -> None:
        self.most = most  #: bytes
        self.bytes = 0
        self.events = 0
        self.dropped = 0  #: events, ever


class Waiting:
    """What waits of one engine."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._events: dict[int, Stored] = {}  # by the number of their arrival
        self._by_parent: dict[int, list[int]] = {}
        self._copies: dict[int, int] = {}  # of blocks that have no name yet, by handle
        self._arrivals = 0

    def __bool__(self) -> bool:
        return bool(self._copies or self._events)

    def add(self, event: Stored) -> None:
        """Keep ``event`` until its parent is known."""
        self._arrivals += 1
        self._events[self._arrivals] = event
        self._by_parent.setdefault(event.parent or 0, []).append(self._arrivals)
        self._room.events += 1
        self._room.bytes += EVENT_BYTES + len(event.tokens)
        for key in _handles(event):
            self._count(key)
        self._make_room()

    def owe(self, key: int) -> None:
        """Count a copy of a block that has no name yet, whose tokens were not told."""
        self._count(key)
        self._make_room()

    def removed(self, key: int) -> None:
        """Note that one copy of a block is gone, if it waits."""
        if copies := self._copies.get(key, 0):
            self._copies[key] = copies - 1

    def claim(self, key: int) -> int:
        """Return how many copies of a block waited for its name, which it has now."""
        copies = self._copies.pop(key, None)
        if copies is None:
            return 0
        self._room.bytes -= HASH_BYTES
        return copies

    def children(self, parent: int) -> list[Stored]:
        """Return the events that waited for ``parent``, in order, which wait no longer."""
        return [self._leave(number) for number in self._by_parent.pop(parent, ())]

    def clear(self) -> None:
        """Drop all."""
        for number in list(self._events):
            self._leave(number)
        self._room.bytes -= HASH_BYTES * len(self._copies)
        self._by_parent.clear()
        self._copies.clear()

    def _count(self, key: int) -> None:
        copies = self._copies.get(key)
        if copies is None:
            self._room.bytes += HASH_BYTES
        self._copies[key] = (copies or 0) + 1

    def _make_room(self) -> None:
        while self._room.bytes > self._room.most and self:
            if self._events:
                self._drop(next(iter(self._events)))
            else:
                self.claim(next(iter(self._copies)))

    def _drop(self, number: int) -> None:
        event = self._leave(number)
        self._room.dropped += 1
        siblings = self._by_parent[event.parent or 0]
        siblings.remove(number)
        if not siblings:
            del self._by_parent[event.parent or 0]
        for key in _handles(event):
            self.claim(key)

    def _leave(self, number: int) -> Stored:
        event = self._events.pop(number)
        self._room.events -= 1
        self._room.bytes -= EVENT_BYTES + len(event.tokens)
        return event


def _handles(event: Stored) -> Iterator[int]:
    where = salt(event.tier, event.group)
    return (handle(engine, where) for engine in event.hashes)
