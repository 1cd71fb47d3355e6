"""What was known of an engine's cache, against what the engine says of itself.

Two witnesses: the cached tokens of a single answer, and the engine's counters of prefix-cache
queries and hits between two scrapes, which count where nearly all of its traffic is ours.

An engine always computes at least a prompt's last token, and between pick and start blocks come and
go. So one surprise means nothing; several of the last ones do. Believing too much and believing too
little are told apart: the first sends requests to where nothing is, the second only misses a
chance. What was only expected, as another request was picked for it, may be there or not.

Counters count a prompt when it starts, and a scrape comes at any time: prompts that were open at one
of two readings may be in their difference or not. So readings are compared once that matters little.
"""

from __future__ import annotations

from collections import deque

import msgspec

LAST = 16  #: surprises are counted among so many answers
SURPRISES = 3
GOOD = 8  #: answers in a row that were as expected end a doubt
LEAST_TOKENS = 4096  #: of prompts, before counters mean something
SLACK = 0.1  #: of prompts' tokens: by others, or open when counters were read, or just surprising
READINGS = 600  #: after so many the counters are compared anew from there


class Claim(msgspec.Struct, frozen=True):
    """What was known of one prompt at its pick, in tokens."""

    prompt: int
    known: int  #: cached, as the engine told
    expected: int = 0  #: more, as other requests were picked for them lately


def claim(prompt: int, known: int, expected: int, *, block: int) -> Claim:
    """Return what an engine with such blocks can confirm: it computes a prompt's last token."""
    most = max(prompt - 1, 0) // block * block
    sure = min(known, most)
    return Claim(prompt, sure, min(expected, most - sure))


class _Counters(msgspec.Struct):
    """Since the counters were last compared."""

    queries: float
    hits: float
    open: int  #: tokens of prompts that were open then
    readings: int = 0
    prompts: int = 0  #: tokens of ours
    known: int = 0  #: of these, that were known to be cached
    expected: int = 0  #: of these, that were expected to be


class Audit:
    """Of one engine."""

    def __init__(self) -> None:
        self.answers = 0  #: that were compared, ever; so do readings of counters count
        self.over = 0  #: of these, with fewer tokens cached than known, ever
        self.under = 0  #: with more, ever
        self._last: deque[int] = deque(maxlen=LAST)  # 1 over, -1 under, 0 as expected
        self._good = GOOD
        self._open = 0  # tokens of prompts that were picked and are not over
        self._counters: _Counters | None = None
        self._read_at = -1.0

    @property
    def doubt(self) -> str:
        """Why what is known is not to be believed, a fixed word; "" if it is."""
        if self._good >= GOOD:
            return ""
        if self._last.count(1) >= SURPRISES:
            return "overestimated"
        return "underestimated" if self._last.count(-1) >= SURPRISES else ""

    def picked(self, made: Claim) -> None:
        """Note a prompt that is sent to the engine."""
        self._open += made.prompt
        if self._counters is not None:
            self._counters.prompts += made.prompt
            self._counters.known += made.known
            self._counters.expected += made.expected

    def ended(self, made: Claim, *, computed: bool) -> None:
        """Note that a prompt is over; if it was not ``computed`` there, counters miss it."""
        self._open = max(self._open - made.prompt, 0)
        if not computed:
            self._counters = None

    def answered(self, made: Claim, cached: int, *, block: int) -> None:
        """Compare one answer; ``block`` is the larger of the engine's block and ours, in tokens."""
        most = made.known + made.expected
        self._judge((made.known - cached > block) - (cached - most > block))

    def counted(self, queries: float, hits: float, *, at: float) -> None:
        """Compare the engine's counters, in tokens, as scraped at a time; each scrape counts once.

        To be called soon after it.
        """
        if at <= self._read_at:
            return
        self._read_at = at
        before = self._counters
        if before is None or queries < before.queries or before.readings >= READINGS:
            self._counters = _Counters(queries, hits, self._open)
            return
        before.readings += 1
        asked, found = queries - before.queries, hits - before.hits
        unsure = before.open + self._open
        slack = SLACK * asked
        if asked < LEAST_TOKENS or unsure > slack or abs(before.prompts - asked) > slack + unsure:
            return
        self._counters = _Counters(queries, hits, self._open)
        most = before.known + before.expected
        self._judge((before.known - found > slack + unsure) - (found - most > slack + unsure))

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
