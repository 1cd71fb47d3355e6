"""Conversations of a trace: which request continues which.

Where a trace names sessions, they are taken at their word. Where it does not, a request continues
the one whose full blocks it begins with, if it is long enough to hold that one's answer too. A block
that three conversations hold is a shared prefix, such as a system prompt, and no sign of any.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from epp.recording.record import Record
from epp.traffic.trace import Trace

KEPT = 2  #: at least one part in so many of an answer comes back: engines strip what they thought
SHARED = 3  #: conversations that hold a block, from which on it tells nothing


class Turn(msgspec.Struct, frozen=True):
    """A request in its conversation."""

    record: Record
    parent: Turn | None = None
    index: int = 0  #: 0 for the first turn


def conversations(trace: Trace) -> list[list[Turn]]:
    """Return each conversation's turns, in order; conversations by their first arrival."""
    if any(record.session for record in trace.records):
        named = _named(trace.records)
    else:
        named = _found(trace)
    return [list(_turns(records)) for records in named]


def _turns(records: Iterable[Record]) -> Iterable[Turn]:
    before: Turn | None = None
    for index, record in enumerate(records):
        before = Turn(record, before, index)
        yield before


def _named(records: Sequence[Record]) -> list[list[Record]]:
    named: dict[str, list[Record]] = {}
    for i, record in enumerate(records):
        named.setdefault(record.session or f"\0{i}", []).append(record)
    return list(named.values())


def _found(trace: Trace) -> list[list[Record]]:
    """Find conversations by what prompts begin with."""
    finder = _Finder()
    for record in trace.records:
        finder.add(record, record.hash_ids[: record.input_tokens // trace.block_tokens])
    return finder.found


class _Finder:
    """Puts one request after another to the conversation it continues."""

    def __init__(self) -> None:
        self.found: list[list[Record]] = []
        self._ends: dict[int, list[int]] = {}  # a last full block -> conversations that end there
        self._holders: dict[int, int] = {}  # a block -> how many conversations hold it

    def add(self, record: Record, ids: Sequence[int]) -> None:
        """Add ``record``, whose full blocks are ``ids``."""
        which = self._continued(record, ids)
        held: Sequence[int] = ()
        if which is None:
            which = len(self.found)
            self.found.append([])
        else:
            held = self.found[which][-1].hash_ids
        self.found[which].append(record)
        for i, each in enumerate(ids):
            if i >= len(held) or held[i] != each:
                self._holders[each] = self._holders.get(each, 0) + 1
        if ids:
            self._ends.setdefault(ids[-1], []).append(which)

    def _continued(self, record: Record, ids: Sequence[int]) -> int | None:
        """The conversation with which it shares most; of several, the newest."""
        for each in reversed(ids):
            if self._holders.get(each, 0) >= SHARED:
                return None  # and so are all blocks before it
            waiting = self._ends.get(each, [])
            for at in range(len(waiting) - 1, -1, -1):
                last = self.found[waiting[at]][-1]
                if record.input_tokens >= last.input_tokens + last.output_tokens // KEPT:
                    return waiting.pop(at)  # it ends elsewhere from here on
        return None
