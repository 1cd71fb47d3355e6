"""How often the API server is asked, and how long it is waited for; pure."""

from __future__ import annotations

import math

import msgspec

from epp.kube.errors import KubeError

MAX_DOUBLINGS = 16


class Backoff(msgspec.Struct, frozen=True):
    """Pauses that double with each failure in a row, drawn so that clients do not march in step."""

    first: float = 0.4  #: seconds
    limit: float = 30.0
    longest_asked: float = 120.0  #: a server's ``Retry-After`` is honoured up to that

    def pause(self, failures: int, draw: float, *, asked: float = 0.0) -> float:
        """Seconds to wait after the ``failures``-th failure in a row.

        Args:
            failures: at least 1.
            draw: uniform in [0, 1).
            asked: the server's ``Retry-After``; never undercut.
        """
        whole = min(self.limit, self.first * 2.0 ** min(failures - 1, MAX_DOUBLINGS))
        own = whole * (0.5 + draw / 2)
        asked = min(asked, self.longest_asked)
        return max(own, asked * (1 + draw / 4))


class Pace(msgspec.Struct, frozen=True):
    """A reflector's intervals, in seconds."""

    page: int = 500  #: objects per page of a list: one page is decoded in one go
    call: float = 60.0  #: one page must come within that
    watch: float = 45.0  #: the server is asked to end a watch after one to two times that
    grace: float = 5.0  #: a watch that did not end by then is dead
    relist: float = 600.0  #: everything is read again after one to 1.25 times that
    missing: float = 30.0  #: between two looks for a resource that is not served
    steady: float = 5.0  #: a watch that lived that long ends a row of failures
    short_row: int = 3  #: a watch that was opened at all leaves a row of failures no longer
    backoff: Backoff = Backoff()

    def watch_for(self, draw: float) -> int:
        """The ``timeoutSeconds`` of one watch; ``draw`` is uniform in [0, 1)."""
        return math.ceil(self.watch * (1 + draw))

    def relist_after(self, draw: float) -> float:
        """Seconds until the next list."""
        return self.relist * (1 + draw / 4)


def may_resume(error: KubeError) -> bool:
    """Whether a watch may go on from the version it had; else everything is read again."""
    if error.reason == "answer":  # what was said cannot be read: an event may be lost
        return False
    return error.status in {0, 429} or error.status >= 500
