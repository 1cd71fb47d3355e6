"""How many files and sockets the process may have open: as many as it is allowed to ask for.

Shells and systemd grant 1,024 at first. Each stream of Envoy takes one, and each engine whose KV
events are read several: with a few hundred engines nothing could be opened any more.

**Source:** RLIMIT_NOFILE in getrlimit(2).
"""

from __future__ import annotations

import contextlib
import resource

MOST = 1 << 20  #: where no bound is set


def raise_limit() -> None:
    """Ask for as many as there may be; what is refused stays as it was."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
