"""Conversations of a running picker: which request continues which.

A client's own session id is taken at its word. Without one, a request continues the conversation
whose last prompt it begins with, if it is long enough to hold half of that one's answer too: the
rule of `epp.traffic.sessions`, for a stream of requests and bounded.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from epp.recording.numbers import Recent

MOST = 100_000  #: conversations and last blocks remembered


class Place(msgspec.Struct):
    """A conversation, after its last request."""

    number: int
    name: str  #: as the client names it, keyed; "" if it does not
    record: int = 0  #: its last record
    ended_at: float = 0.0  #: when that was answered
    tokens: int = 0  #: of its last prompt and half of the answer


class Talks:
    """Finds a request's conversation."""

    def __init__(self, most: int = MOST) -> None:
        self._named: Recent[Place] = Recent(most)
        self._ends: Recent[Place] = Recent(most)  # by the last block of its last prompt
        self._count = 0

    def named(self, name: str) -> Place:
        """Return the conversation that the client calls ``name``, a keyed name in hex."""
        key = int(name, 16)
        if (place := self._named.get(key)) is None:
            place = self._new(name)
            self._named.put(key, place)
        return place

    def found(self, chain: Sequence[int], tokens: int, shared: int) -> Place:
        """Return the conversation of a prompt.

        Args:
            chain: hashes of its blocks.
            tokens: its length.
            shared: leading blocks that many conversations hold: they tell nothing.
        """
        for each in reversed(chain[shared:]):
            place = self._ends.get(each)
            if place is not None and tokens >= place.tokens:
                return place
        return self._new("")

    def ended(self, place: Place, chain: Sequence[int]) -> None:
        """Note that the conversation's last prompt is ``chain``."""
        if chain:
            self._ends.put(chain[-1], place)

    def _new(self, name: str) -> Place:
        self._count += 1
        return Place(self._count, name)
