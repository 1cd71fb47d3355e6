"""Keeps the picker's threads together on one CPU, and on a quiet one.

A thread that hands work to another one on another CPU wakes that CPU, and in a virtual machine this
costs more than what is handed over. The picker is one event loop; its other threads, such as the one
that encodes pages of metrics or sends spans, hand it work. They are scheduled as a batch, so that a
woken thread does not interrupt the one that woke it.

The price is that the kernel may no longer move the picker away from a busy neighbour. So every
`LOOK_SECONDS` the CPUs' use by others is compared, and the picker moves by itself.

**Source:** sched(7) for SCHED_BATCH; proc_stat(5).
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

log = logging.getLogger(__name__)

LOOK_SECONDS = 2.0
MARGIN = 0.3  #: of a CPU's time that another must be quieter by, twice in a row, to move there

_STAT = Path("/proc/stat")
_THREADS = Path("/proc/self/task")
_IDLE = slice(3, 5)  #: columns "idle" and "iowait"
_GUEST = 8  #: columns from here on are part of earlier ones


class Look(msgspec.Struct, frozen=True):
    """Seconds used since the machine began."""

    busy: Mapping[int, float]  #: by CPU, by anybody
    own: float  #: by this process, on whichever CPU


class Choice:
    """Which CPU to be on. Pure; fed one `Look` after another."""

    def __init__(self) -> None:
        self.cpu: int | None = None  #: None before the second look
        self._last: tuple[Look, float] | None = None
        self._wanted = 0  #: looks in a row that spoke for a move

    def take(self, look: Look, now: float) -> int | None:
        """Return the CPU to be on, given the use since the last look; None until there is one."""
        last, self._last = self._last, (look, now)
        if last is None or now <= last[1]:
            return self.cpu
        others = self._others(last[0], look, now - last[1])
        if not others:
            return self.cpu
        quietest = min(others, key=lambda cpu: (others[cpu], cpu))
        if self.cpu not in others:
            self.cpu = quietest
        elif others[self.cpu] - others[quietest] < MARGIN:
            self._wanted = 0
        elif self._wanted:
            self.cpu, self._wanted = quietest, 0
        else:
            self._wanted = 1
        return self.cpu

    def _others(self, before: Look, after: Look, seconds: float) -> dict[int, float]:
        """The part of each CPU's time that others used."""
        others = {}
        for cpu, busy in after.busy.items():
            if cpu in before.busy:
                own = after.own - before.own if cpu == self.cpu else 0.0
                others[cpu] = max(busy - before.busy[cpu] - own, 0.0) / seconds
        return others


async def stay_together() -> None:
    """Keep all threads on one CPU until cancelled; where the system forbids it, do nothing."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    choice = Choice()
    while len(allowed) > 1:
        try:
            _look_and_place(choice, allowed)
        except (OSError, ValueError, IndexError) as error:
            log.info("the picker's threads are not kept on one CPU: %s", error)
            return
        await asyncio.sleep(LOOK_SECONDS)


def _look_and_place(choice: Choice, allowed: set[int]) -> None:
    cpu = choice.take(look(_STAT.read_text(), allowed), time.monotonic())
    if cpu is not None:
        _place(cpu)


def look(stat: str, allowed: set[int]) -> Look:
    """Read the text of ``/proc/stat``, for the ``allowed`` CPUs only."""
    busy: dict[int, float] = {}
    tick = os.sysconf("SC_CLK_TCK")
    for line in stat.splitlines():
        name, *columns = line.split()
        if name.startswith("cpu") and name[3:].isdecimal() and int(name[3:]) in allowed:
            used = [int(column) for column in columns[:_GUEST]]
            busy[int(name[3:])] = (sum(used) - sum(used[_IDLE])) / tick
    return Look(busy, time.process_time())


def _place(cpu: int) -> None:
    """Move every thread that is elsewhere; new ones inherit from the one that starts them."""
    for folder in _THREADS.iterdir():
        thread = int(folder.name)
        try:
            if os.sched_getaffinity(thread) != {cpu}:
                os.sched_setaffinity(thread, {cpu})
                os.sched_setscheduler(thread, os.SCHED_BATCH, os.sched_param(0))
        except ProcessLookupError:
            continue  # it ended meanwhile
