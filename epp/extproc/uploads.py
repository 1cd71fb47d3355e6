"""Request bodies that are still coming, and how long they may take.

What has come of a body is held, and counts against all others' room. A client that sends a byte now
and then would keep it for as long as its gateway lets it.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

LOOKS = 4  #: at the oldest, within the time that a body may take
LONGEST_SECONDS = 1.0  #: between looks


class Upload(Protocol):
    """A stream that waits for the rest of a body."""

    def late(self) -> None:
        """The body has taken too long."""
        ...


class Uploads:
    """Knows since when each body has been coming; 0.2 us a request, one timer for all.

    Args:
        seconds: that a body may take from its head to its end, more or less; 0 is no bound.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._since: dict[Upload, float] = {}  # the oldest first
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._since)

    def began(self, upload: Upload) -> None:
        """A head came whose body is still to come; once is enough."""
        if upload in self._since or not self.seconds:
            return
        loop = asyncio.get_running_loop()
        self._since[upload] = loop.time()
        if self._timer is None:
            self._watch(loop)

    def ended(self, upload: Upload) -> None:
        """The body is whole, or nobody wants it any more; unknown is not an error."""
        self._since.pop(upload, None)

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        pause = min(self.seconds / LOOKS, LONGEST_SECONDS)
        self._timer = loop.call_later(pause, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        since = self._since
        oldest = loop.time() - self.seconds
        while since and (upload := next(iter(since))) and since[upload] <= oldest:
            del since[upload]
            upload.late()
        if since:
            self._watch(loop)
        else:
            self._timer = None
