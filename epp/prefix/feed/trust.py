"""How far what an engine told may be believed, and why no further.

* ``exact``: every message since the engine's start was taken in, it tells of what it computes, and
  what it reports agrees. A match is a fact.
* ``predicted``: some of it is missing, late, or has proved wrong. What is known may be less than
  there is; own picks are believed for longer, see `EXPECTED_SECONDS`.
* ``prior``: nothing is known, of events or picks. Only what holds for any endpoint helps.

The reason is a fixed word, for metrics: this is where a fleet finds out which pod's events do not
come, and since when.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from epp.prefix.feed.audit import Audit
from epp.prefix.feed.sequence import Sequence

OVERDUE_SECONDS = 5.0
"""Events come at the end of the step that computed the blocks: after this long they do not come."""
MISSED_SECONDS = 30.0  #: between two times that what is overdue is asked for
ANEW_SECONDS = 60.0  #: between two times that what is known is built anew, doubled each time
ANEW_MOST_SECONDS = 3600.0


class Level(StrEnum):
    """The most trusted first."""

    EXACT = "exact"
    PREDICTED = "predicted"
    PRIOR = "prior"


EXPECTED_SECONDS: Mapping[Level, float] = {
    Level.EXACT: 2.0,
    Level.PREDICTED: 120.0,
    Level.PRIOR: 120.0,
}
"""How long a pick's blocks are believed to be there, if no event tells of them."""


class Trust(msgspec.Struct, frozen=True):
    """A level and why it is no better."""

    level: Level
    reason: str = ""  #: a fixed word; "" if exact


class Confidence:
    """Of one engine. Times are seconds on the caller's clock.

    Args:
        sequence: of its messages.
        audit: of what was known.
    """

    def __init__(self, sequence: Sequence, audit: Audit) -> None:
        self.connected = False  #: to where its events come from; the caller says so
        self.refused = False  #: there was no room for some of its blocks; the caller says so
        self._sequence = sequence
        self._audit = audit
        self._told_at: float | None = None
        self._owed_since: float | None = None  # it computed blocks then, and told nothing since
        self._picked = False
        self._anew_at = self._missed_at = 0.0
        self._pause = ANEW_SECONDS

    def told(self, now: float) -> None:
        """Note any message."""
        self._told_at, self._owed_since = now, None

    def told_since(self, moment: float) -> bool:
        """Whether any message came since then."""
        return self._told_at is not None and self._told_at >= moment

    def computed(self, now: float, *, told: bool) -> None:
        """Note a request that made the engine compute at least a block, and is answered by now.

        ``told`` says whether any message came since it was sent.
        """
        self._picked = True
        if self._owed_since is None and not told:
            self._owed_since = now

    def silent_seconds(self, now: float) -> float:
        """Return for how long the engine has owed events; 0.0 if it owes none."""
        return 0.0 if self._owed_since is None else now - self._owed_since

    def trust(self, now: float) -> Trust:
        """Return how far what is known may be believed at this moment."""
        reason = self._reason(now)
        if not reason:
            return Trust(Level.EXACT)
        known = self._picked or self._told_at is not None
        return Trust(Level.PREDICTED if known else Level.PRIOR, reason)

    def wants_anew(self, now: float) -> bool:
        """Say, now and then, that what is known claims too much and is to be built anew."""
        if self._audit.doubt != "overestimated" or now < self._anew_at:
            return False
        self._anew_at, self._pause = now + self._pause, min(self._pause * 2, ANEW_MOST_SECONDS)
        self._audit.forget()
        return True

    def wants_missed(self, now: float) -> bool:
        """Say, now and then, that the engine owes events, so that its last one may be lost."""
        if self.silent_seconds(now) < OVERDUE_SECONDS or now < self._missed_at:
            return False
        self._missed_at = now + MISSED_SECONDS
        return True

    def _reason(self, now: float) -> str:
        if not self.connected:
            return "not_connected"
        if self.silent_seconds(now) >= OVERDUE_SECONDS:
            return "no_events"
        if self._sequence.catching_up:
            return "catching_up"
        if not self._sequence.whole:
            return self._sequence.reason
        return "no_room" if self.refused else self._audit.doubt
