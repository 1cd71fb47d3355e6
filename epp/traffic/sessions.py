"""Conversations of a trace: which request continues which.

Where a trace names sessions, or else parents, they are taken at their word. Where it does not, a
request continues the one whose full blocks it begins with, if it is long enough to hold that one's
answer too. A block that three conversations hold is a shared prefix, such as a system prompt, and
no sign of any.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from epp.recording.record import Record
from epp.traffic.trace import Trace

KEPT = 2  #: at least one part in so many of an answer comes back: engines strip what they thought
THREADS = 16  #: of a conversation that are kept in view
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
    elif any(record.parent for record in trace.records):
        named = _linked(trace.records)
    else:
        named = _found(trace)
    return [list(_turns(records)) for records in named]


def threads(trace: Trace) -> list[list[Turn]]:
    """Return conversations, those taken apart that say several things side by side.

    An agent's session may hold prompts of other agents, and forks. A thread goes on while prompts
    keep all full blocks of the one before, or at least half of it: compaction, edits.
    """
    found: list[list[Turn]] = []
    for talk in conversations(trace):
        parts: list[list[Record]] = []
        for turn in talk:
            _thread(parts, turn.record, trace.block_tokens).append(turn.record)
        found += [list(_turns(part)) for part in parts]
    return sorted(found, key=lambda talk: talk[0].record.at)


def _thread(parts: list[list[Record]], record: Record, block_tokens: int) -> list[Record]:
    """The thread that ``record`` continues, or a new one."""
    best, most = None, 0
    for part in reversed(parts[-THREADS:]):
        last = part[-1]
        full = last.input_tokens // block_tokens
        shared = common(record.hash_ids, last.hash_ids)
        if shared > most and 2 * shared >= full:
            best, most = part, shared
    if best is None and parts and not record.runs:
        best = parts[-1]  # nothing is known of blocks
    if best is None:
        parts.append(best := [])
    return best


def common(ids: Sequence[int], others: Sequence[int]) -> int:
    """Return how many leading ids are the same; they are chained, so the last equal one tells."""
    low, high = 0, min(len(ids), len(others))
    while low < high:
        middle = (low + high + 1) // 2
        if ids[middle - 1] == others[middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low


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


def _linked(records: Sequence[Record]) -> list[list[Record]]:
    """Put requests to that of their parent, which came before; those without begin something."""
    linked: list[list[Record]] = []
    places: dict[str, list[Record]] = {}
    for record in records:
        talk = places.get(record.parent) if record.parent else None
        if talk is None:
            linked.append(talk := [])
        talk.append(record)
        if record.id:
            places[record.id] = talk
    return linked


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
