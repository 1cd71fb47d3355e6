"""Shares the event loop between feeds and all else: a bounded slice of work each turn."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Protocol

TURN_SECONDS = 0.001  #: of one turn of the loop; a request takes a few turns
TOLD_SECONDS = 60.0  #: between two failures that are logged

_log = logging.getLogger(__name__)


class Worker(Protocol):
    """Whoever has work now and then."""

    def work(self) -> bool:
        """Do about a millisecond's work at most; return whether there may be more."""
        ...


class Pump:
    """Runs workers in turn, on the running event loop."""

    def __init__(self) -> None:
        self._ready: dict[Worker, None] = {}
        self._loop = asyncio.get_running_loop()
        self._handle: asyncio.Handle | None = None
        self._told_at = -TOLD_SECONDS

    def __contains__(self, worker: Worker) -> bool:
        return worker in self._ready

    def wake(self, worker: Worker) -> None:
        """Note that ``worker`` has work."""
        self._ready[worker] = None
        if self._handle is None:
            self._handle = self._loop.call_soon(self._run)

    def drop(self, worker: Worker) -> None:
        """Give ``worker`` no more turns."""
        self._ready.pop(worker, None)

    def _run(self) -> None:
        until = time.perf_counter() + TURN_SECONDS
        self._handle = None
        while self._ready:
            worker = next(iter(self._ready))
            del self._ready[worker]
            try:
                if worker.work():
                    self._ready[worker] = None
            except Exception:  # noqa: BLE001 - one engine's oddity must not end the others' feeds
                self._tell(self._loop.time())
            if time.perf_counter() >= until:
                break
        if self._ready:
            self._handle = self._loop.call_soon(self._run)

    def _tell(self, now: float) -> None:
        """Log a failure, if none was for a while: what fails with each message would fill the log."""
        if now - self._told_at >= TOLD_SECONDS:
            self._told_at = now
            _log.exception("a feed of KV events failed")
