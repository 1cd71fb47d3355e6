"""When something is tried next: after each try in vain twice as late; pure."""

from __future__ import annotations

import msgspec

RETRY_SECONDS = 5.0  #: after the first try in vain
MOST_SECONDS = 300.0


class Turn(msgspec.Struct):
    """Of one endpoint. Times are seconds on the caller's clock."""

    at: float  #: when it is due
    pause: float = 0.0  #: after the last try; 0 if that was not in vain

    def begin(self, now: float) -> None:
        """Note a try, which is in vain until `done`."""
        self.pause = min(self.pause * 2, MOST_SECONDS) or RETRY_SECONDS
        self.at = now + self.pause

    def done(self, at: float) -> None:
        """Note that it was not, and when the next one is due."""
        self.at, self.pause = at, 0.0
