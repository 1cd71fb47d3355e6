"""How far another picker's clock is from ours, seen by when its messages come. Pure.

A message is never early, so that the least difference of late is the nearest to the truth: some
milliseconds at most on one network. Monotonic clocks drift apart, so what was seen long ago is
forgotten.
"""

from __future__ import annotations

WINDOW = 30.0  #: seconds; the least of this one and of the one before counts


class Offset:
    """Of one picker."""

    def __init__(self) -> None:
        self.lag = 0.0  #: seconds that the last message took longer than the quickest of late
        self._begun = 0.0
        self._least = self._before = float("inf")

    def see(self, here: float, there: float) -> float:
        """Note a message that was sent at ``there`` and came at ``here``, each by its own clock.

        Returns:
            What to add to a time of theirs to have it by our clock.
        """
        now = here - there
        if self._least == float("inf"):
            self._begun = here
        elif here - self._begun >= WINDOW:
            self._before, self._least, self._begun = self._least, now, here
        self._least = min(self._least, now)
        ago = min(self._least, self._before)
        self.lag = now - ago
        return ago
