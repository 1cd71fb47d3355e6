"""A picker that follows this one: what is still to be told to it, of bounded size."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from itertools import islice

from epp.feedback.entry import Entry
from epp.peers.news import Sent
from epp.rpc.call import Call
from epp.rpc.status import Code

MOST_WAITING = 8 * 2**20  #: bytes that a follower may be behind
MOST_ENTRIES = 8192  #: of access logs, gathered for it


class Follower:
    """Holds messages until they are read.

    One that reads too slowly is cut off: it asks again and hears what is under way then, which is
    less than all that it has missed.
    """

    def __init__(self, call: Call, instance: str, past: Iterable[Sent]) -> None:
        self.instance = instance  #: of the follower
        self.waiting = 0  #: bytes to be sent
        self.entries: list[Entry] = []  #: of its requests, to be put into the next message
        self._call = call
        self._messages: deque[bytes] = deque()
        self._past = iter(past)
        self._next = next(self._past, None)  # of the past
        self._something = asyncio.Event()

    def push(self, message: bytes) -> bool:
        """Have a message sent; return False if the follower is cut off instead."""
        self._messages.append(message)
        self.waiting += len(message)
        self._something.set()
        if self.waiting <= MOST_WAITING:
            return True
        self._call.fail(Code.RESOURCE_EXHAUSTED, "this follower reads too slowly")
        return False

    def log(self, entry: Entry) -> bool:
        """Gather an entry; return False if there are too many."""
        if len(self.entries) >= MOST_ENTRIES:
            return False
        self.entries.append(entry)
        return True

    def end(self) -> None:
        """Tell it nothing any more."""
        self._call.fail(Code.UNAVAILABLE, "the pool is not served any more")

    @property
    def past_told(self) -> bool:
        """Whether nothing of the past is left to be told."""
        return self._next is None

    def past(self, most: int) -> tuple[Sent, ...]:
        """Return the next requests of the past, the oldest first."""
        if self._next is None:
            return ()
        found = (self._next, *islice(self._past, most - 1))
        self._next = next(self._past, None)
        return found

    async def send(self, message: bytes) -> int:
        """Send a message now; return its size."""
        await self._call.write(message)
        return len(message)

    async def next(self) -> bytes:
        """Return the next message, once there is one."""
        while not self._messages:
            self._something.clear()
            await self._something.wait()
        message = self._messages.popleft()
        self.waiting -= len(message)
        return message
