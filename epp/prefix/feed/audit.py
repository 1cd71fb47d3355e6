"""What was known of an engine's cache, against what the engine says of itself.

Two witnesses: the cached tokens of a single answer, and the engine's counters of prefix-cache
queries and hits between two scrapes, which count for as long as nearly all of its traffic is ours.

An engine always computes at least a prompt's last token, so it may report a block less than it
holds, and between pick and start blocks come and go. So one surprise means nothing; several of the
last ones do. Believing too much and believing too little are told apart: the first sends requests
to where nothing is, the second only misses a chance.
"""

from __future__ import annotations

from collections import deque

import msgspec

LAST = 16  #: surprises are counted among so many answers
SURPRISES = 3
GOOD = 8  #: answers in a row that were as expected end a doubt
LEAST_TOKENS = 4096  #: of prompts, before counters mean something
OURS = 0.9  #: share of the engine's queries that must be ours
SLACK = 0.1  #: of the prompts' tokens, in what counters say
READINGS = 60  #: after so many the counters are compared anew from there


class _Counters(msgspec.Struct):
    """Since the counters were last compared."""

    queries: float
    hits: float
    readings: int = 0
    prompts: int = 0  #: tokens of ours
    known: int = 0  #: of these, that were known to be cached


class Audit:
    """Of one engine."""

    def __init__(self) -> None:
        self.answers = 0  #: that were compared, ever
        self.over = 0  #: of these, with fewer tokens cached than known, ever
        self.under = 0  #: with more, ever
        self._last: deque[int] = deque(maxlen=LAST)  # 1 over, -1 under, 0 as expected
        self._good = GOOD
        self._counters: _Counters | None = None

    @property
    def doubt(self) -> str:
        """Why what is known is not to be believed, a fixed word; "" if it is."""
        if self._good >= GOOD:
            return ""
        if self._last.count(1) >= SURPRISES:
            return "overestimated"
        return "underestimated" if self._last.count(-1) >= SURPRISES else ""

    def answered(self, known: int, cached: int | None, *, prompt: int, block: int) -> None:
        """Compare one answer, in tokens; ``block`` is the larger of the engine's block and ours.

        ``known`` is what was known to be cached at the pick, without what was only expected;
        ``cached`` is None if the answer did not tell.
        """
        if self._counters is not None:
            self._counters.prompts += prompt
            self._counters.known += known
        if cached is not None:
            self._judge((known - cached > block) - (cached - known > block))

    def counted(self, queries: float, hits: float) -> None:
        """Compare the engine's counters, in tokens, as they were last scraped."""
        before = self._counters
        if before is None or queries < before.queries or before.readings >= READINGS:
            self._counters = _Counters(queries, hits)
            return
        before.readings += 1
        asked = queries - before.queries
        if asked < LEAST_TOKENS or not before.prompts * OURS <= asked <= before.prompts / OURS:
            return
        beyond = before.known - (hits - before.hits)
        self._counters = _Counters(queries, hits)
        self._judge((beyond > asked * SLACK) - (-beyond > asked * SLACK))

    def forget(self) -> None:
        """Begin anew, as what is known does."""
        self._last.clear()
        self._good, self._counters = GOOD, None

    def _judge(self, verdict: int) -> None:
        self.answers += 1
        self.over += verdict > 0
        self.under += verdict < 0
        self._last.append(verdict)
        self._good = 0 if verdict else self._good + 1
