"""Notices a changed file, a ConfigMap's symlink swap included."""

from __future__ import annotations

import asyncio
import logging
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path

log = logging.getLogger(__name__)

SETTLE_SECONDS = 0.05  #: a file that changes within them is still being written
SETTLE_TRIES = 20

Stamp = tuple[int, int, int]


async def watch_file(
    path: str,
    changed: Callable[[], Awaitable[None]],
    *,
    interval: float = 1.0,
    used: bytes | None = None,
) -> None:
    """Call ``changed`` whenever the content of ``path`` is another one; never returns.

    ``used`` is the content that is in use already, so that a change between reading it and
    watching is seen; without it, it is what the file holds at first.

    Looks once in ``interval`` seconds at what the path leads to (through symbolic links) and
    reads the file only if that is new, and at rest: a file that is written in place is empty first,
    and an empty configuration is a valid one. A missing file is waited for.
    """
    seen = _stamp(path) if used is None else None
    content = _read(path) if used is None else used
    while True:
        await asyncio.sleep(interval)
        stamp = _stamp(path)
        if stamp == seen or stamp is None:
            continue
        seen = await _settled(path)
        now = _read(path)
        if now is None or now == content:
            continue
        content = now
        try:
            await changed()
        except Exception:  # the watch must outlive whatever a reload does
            log.exception("reloading after a change of %s failed", path)


async def _settled(path: str) -> Stamp | None:
    """The path's stamp once it stays the same for a moment; waits a second at most."""
    stamp = _stamp(path)
    for _ in range(SETTLE_TRIES):
        await asyncio.sleep(SETTLE_SECONDS)
        before, stamp = stamp, _stamp(path)
        if stamp == before:
            break
    return stamp


def _stamp(path: str) -> Stamp | None:
    """What tells the file's state apart; None if there is none, or a pipe: that is read once only."""
    try:
        status = Path(path).stat()
    except OSError:
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def _read(path: str) -> bytes | None:
    try:
        return Path(path).read_bytes()
    except OSError:
        return None
