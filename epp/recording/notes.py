"""What is written of a request: numbers, fixed words and keyed names. Pure.

Nothing that a client or a model wrote is ever kept, not even as long as the request runs: a
`Fact` has lengths, times, block hashes and ids, and the ids leave here as keyed names only.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import msgspec

from epp.recording.keys import Names
from epp.recording.numbers import Numbers
from epp.recording.record import MOONCAKE_BLOCK, Line
from epp.recording.talks import Place, Talks

FIRST_NUMBERS = 2**52
"""Block numbers start at random below it: those of two recorders do not meet, and all are exact in
a JSON reader that has only doubles."""


class Fact(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a request when its answer has ended. Times in seconds since 1970."""

    at: float  #: when it arrived
    ended_at: float
    input_tokens: int
    output_tokens: int
    chain: Sequence[int] = ()  #: hashes of its blocks, chained
    block_tokens: int = 0  #: 0 without any
    session: str = ""  #: as the client calls it
    tenant: str = ""  #: as the client calls it
    business: str = ""  #: as the client calls it
    ttft: float | None = None
    counted_tokens: int | None = None
    cached_tokens: int | None = None
    predicted_tokens: int | None = None
    slot: int | None = None
    reason: str = ""
    outcome: str = ""


class Notes:
    """Turns facts into lines, one after the other.

    Args:
        names: keyed.
        least: conversations that share a block before that is told.
        known: classes of business that may be written by their own name.
    """

    def __init__(self, names: Names, least: int, known: frozenset[str] = frozenset()) -> None:
        self._names = names
        self._least = least
        self._known = known
        self._count = 0
        self._numbers: Numbers | None = None
        self._talks = Talks()

    def line(self, fact: Fact) -> Line:
        """Return what is written of ``fact``."""
        numbers = self._current(fact)
        place = self._place(fact, numbers)
        told = numbers.tell(fact.chain, place.number)
        self._count += 1
        line = Line(
            timestamp=round(fact.at * 1000, 3),
            input_length=fact.input_tokens,
            output_length=fact.output_tokens,
            hash_rle=told.runs,
            block_size=fact.block_tokens or MOONCAKE_BLOCK,
            id=self._count,
            parent=place.record or "",
            session_id=place.name or self._names.name("talk", str(place.number)),
            business=self._business(fact.business),
            tenant=self._names.name("tenant", fact.tenant),
            family=self._family(fact.chain, told.shared),
            think_ms=_milliseconds(fact.at - place.ended_at) if place.record else None,
            ttft_ms=_milliseconds(fact.ttft),
            e2e_ms=_milliseconds(fact.ended_at - fact.at),
            counted_tokens=fact.counted_tokens,
            cached_tokens=fact.cached_tokens,
            predicted_tokens=fact.predicted_tokens,
            slot=fact.slot,
            reason=fact.reason,
            outcome=fact.outcome,
        )
        self._remember(fact, place)
        return line

    def _current(self, fact: Fact) -> Numbers:
        """The numbers of this epoch: with new keys, nothing of before is known."""
        if self._names.turn(fact.ended_at) or self._numbers is None:
            self._numbers = Numbers(self._least, secrets.randbelow(FIRST_NUMBERS))
            self._talks = Talks()
        return self._numbers

    def _place(self, fact: Fact, numbers: Numbers) -> Place:
        if fact.session:
            return self._talks.named(self._names.name("session", fact.session))
        common = numbers.common(fact.chain)
        return self._talks.found(fact.chain, fact.input_tokens, common)

    def _remember(self, fact: Fact, place: Place) -> None:
        place.record = self._count
        place.ended_at = fact.ended_at
        place.tokens = fact.input_tokens + fact.output_tokens // 2
        self._talks.ended(place, fact.chain)

    def _business(self, name: str) -> str:
        return name if name in self._known else self._names.name("class", name)

    def _family(self, chain: Sequence[int], shared: int) -> str:
        return self._names.name("family", f"{chain[shared - 1]:x}") if shared else ""


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else max(round(seconds * 1000, 3), 0.0)
