"""Blocks that were told before the block they follow, until that one is told too.

A picker that joined late, or whose messages came out of order, hears of blocks whose parent
it does not know, so it cannot name them. They wait here with their tokens, the only place
where tokens stay, in a room of bounded size that all endpoints share; where it is full, the longest
waiting of whoever has the most there are dropped first. A removal of a block that waits is
remembered: it may be gone before it has a name.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice

from epp.prefix.exact.events import Stored
from epp.prefix.exact.handles import MOST_COPIES, handle, handles, salt

MOST_BYTES = 64 << 20
EVENT_BYTES = 600  #: of a waiting event beside its tokens
HASH_BYTES = 200  #: of a block that waits, in all places where it is remembered
FRONT = 1024  #: blocks that are looked up at a time, to be dropped
SPARE = 64  #: part of the room, one in so many, that is made free at a time at another's cost


class Room:
    """How much may wait, of all endpoints together."""

    def __init__(self, most: int = MOST_BYTES) -> None:
        self.most = most  #: bytes
        self.bytes = 0
        self.events = 0
        self.dropped = 0  #: events, ever
        self._those_in_it: set[Waiting] = set()

    def count(self, waiting: Waiting, size: int) -> None:
        """Note that so many bytes more of an engine wait."""
        self.bytes += size
        waiting.bytes += size
        if waiting.bytes:
            self._those_in_it.add(waiting)
        else:
            self._those_in_it.discard(waiting)

    def make(self, newest: Waiting) -> None:
        """Drop what there is no room for: of whom the newest is, unless others have more of it."""
        while self.bytes > self.most:
            if newest.bytes * len(self._those_in_it) >= self.bytes:
                newest.drop_longest(self.bytes - self.most)
            else:  # to look for it takes a while, so not for every event
                largest = max(self._those_in_it, key=lambda each: each.bytes)
                largest.drop_longest(self.most // SPARE)


class Waiting:
    """What waits of one engine."""

    def __init__(self, room: Room) -> None:
        self.bytes = 0  #: by estimate; `Room.count` writes it
        self._room = room
        self._events: dict[int, Stored] = {}  # by the number of their arrival
        self._first = self._arrivals = 0  # no event before the first waits
        self._copies: dict[int, int] = {}  # of blocks that have no name yet, by handle
        self._front: deque[int] = (
            deque()
        )  # the oldest of these; a dictionary finds its first slowly
        # Numbers by parent. Most are alone: so many lists would stop the loop for garbage's sake.
        self._by_parent: dict[int, int | list[int]] = {}
        self._ready: deque[Iterator[int]] = deque()  # whose parent is known by now

    def __bool__(self) -> bool:
        return bool(self._copies or self._events)

    def add(self, event: Stored) -> None:
        """Keep ``event`` until its parent is known."""
        self._arrivals += 1
        self._events[self._arrivals] = event
        siblings = self._by_parent.setdefault(event.parent or 0, self._arrivals)
        if isinstance(siblings, list):
            siblings.append(self._arrivals)
        elif siblings != self._arrivals:
            self._by_parent[event.parent or 0] = [siblings, self._arrivals]
        self._room.events += 1
        self._room.count(self, EVENT_BYTES + len(event.tokens))
        for key in _handles(event):
            self._count(key)
        self._room.make(self)

    def owe(self, key: int) -> None:
        """Count a copy of a block that has no name yet, whose tokens were not told."""
        self._count(key)
        self._room.make(self)

    def removed(self, key: int) -> None:
        """Note that one copy of a block is gone, if it waits."""
        if copies := self._copies.get(key, 0):
            self._copies[key] = copies - 1

    def claim(self, key: int) -> int:
        """Return how many copies of a block waited for its name, which it has now."""
        copies = self._copies.pop(key, None)
        if copies is None:
            return 0
        self._room.count(self, -HASH_BYTES)
        return copies

    def claim_each(self, engines: Sequence[int], where: int) -> Iterator[tuple[int, int]]:
        """Yield each engine's hash, ``where`` as `salt` says, with what `claim` returns if not 0."""
        if self._copies:
            for engine, key in zip(engines, handles(engines, where), strict=True):
                if key in self._copies and (copies := self.claim(key)):
                    yield engine, copies

    def release(self, parent: int) -> None:
        """Let the events that waited for ``parent`` be `ready`."""
        siblings = self._by_parent.pop(parent, None)
        if siblings is not None:
            self._ready.append(iter(siblings if isinstance(siblings, list) else (siblings,)))

    @property
    def is_ready(self) -> bool:
        """Whether `ready` may have events."""
        return bool(self._ready)

    def ready(self) -> Iterator[Stored]:
        """Yield events whose parent is known, in order; they wait no longer."""
        while self._ready:
            number = next(self._ready[0], None)
            if number is None:
                self._ready.popleft()
            elif number in self._events:
                yield self._leave(number)

    def drop_longest(self, size: int) -> None:
        """Drop so many bytes or more, if there are."""
        until, events = self.bytes - size, self._room.events
        while self.bytes > until and self._drop_first():
            pass
        self._room.dropped += events - self._room.events

    def drain(self, most: int) -> bool:
        """Drop ``most`` blocks, or those of a whole event more; True once nothing waits."""
        self._ready.clear()
        while most > 0 and (dropped := self._drop_first()):
            most -= dropped
        return not self

    def _drop_first(self) -> int:
        """Drop what waits for the longest, first of events; return its blocks, 0 if nothing waits."""
        if self._events:
            while self._first not in self._events:
                self._first += 1
            return self._drop(self._first)
        if self._copies:
            if not self._front:
                self._front += islice(self._copies, FRONT)
            self.claim(self._front.popleft())
            return 1
        return 0

    def _count(self, key: int) -> None:
        copies = self._copies.get(key)
        if copies is None:
            self._room.count(self, HASH_BYTES)
        self._copies[key] = min((copies or 0) + 1, MOST_COPIES)

    def _drop(self, number: int) -> int:
        event = self._leave(number)
        siblings = self._by_parent.get(event.parent or 0)
        if isinstance(siblings, list) and siblings[0] == number:
            del siblings[0]
        if siblings in (number, []):  # else it is ready, or not the only one
            del self._by_parent[event.parent or 0]
        for key in _handles(event):
            self.claim(key)
        return max(len(event.hashes), 1)

    def _leave(self, number: int) -> Stored:
        event = self._events.pop(number)
        self._room.events -= 1
        self._room.count(self, -EVENT_BYTES - len(event.tokens))
        return event


def _handles(event: Stored) -> Iterator[int]:
    where = salt(event.tier, event.group)
    return (handle(engine, where) for engine in event.hashes)
