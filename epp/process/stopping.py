"""The wish that a process ends, as its loop learns of it."""

from __future__ import annotations

import asyncio
import signal


def stopping() -> asyncio.Event:
    """Return what is set by SIGTERM or SIGINT, in the running loop."""
    told = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, told.set)
    return told
