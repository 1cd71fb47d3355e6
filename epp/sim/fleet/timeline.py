"""Virtual time: what happens when, and an event loop whose clock jumps to it.

The world's own events are plain calls in a heap: 1 us each. Coroutines of the picker that really
wait run as tasks of `VirtualLoop`, which asks the same clock and jumps with it.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import selectors
from collections.abc import Callable
from contextvars import Context
from typing import Any, TypeVarTuple, Unpack

Event = Callable[..., None]
Facts = TypeVarTuple("Facts")


class Timeline:
    """A clock, and the events still to come; of two at one moment, the one told first."""

    def __init__(self) -> None:
        self._now = 0.0
        self._count = 0
        self._events: list[tuple[float, int, Event, tuple[Any, ...]]] = []

    def now(self) -> float:
        """Virtual seconds since the start; see `clock.Clock`."""
        return self._now

    def at(self, when: float, what: Event, *facts: Any) -> None:
        """Call ``what(*facts)`` at ``when``; at once after this event, if that is past."""
        self._count += 1
        heapq.heappush(self._events, (max(when, self._now), self._count, what, facts))

    @property
    def next_at(self) -> float:
        """When the next event is; infinity if there is none."""
        return self._events[0][0] if self._events else math.inf

    def step(self) -> None:
        """Jump to the next event and do it."""
        when, _, what, facts = heapq.heappop(self._events)
        self._now = when
        what(*facts)

    def jump(self, when: float) -> None:
        """Move on to ``when``, before the next event."""
        self._now = max(self._now, when)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop on a timeline: where others would wait, it jumps. It does no I/O."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self.woken = False  #: something is to be called that was not known before
        super().__init__(_Jumps(timeline, self))

    def time(self) -> float:
        """Virtual seconds."""
        return self._timeline.now()

    def call_soon(
        self,
        callback: Callable[[Unpack[Facts]], object],
        *args: *Facts,
        context: Context | None = None,
    ) -> asyncio.Handle:
        """See `asyncio.loop.call_soon`."""
        self.woken = True
        return super().call_soon(callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Facts]], object],
        *args: *Facts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """See `asyncio.loop.call_at`."""
        self.woken = True
        return super().call_at(when, callback, *args, context=context)

    def run(self) -> None:
        """Let everything happen that is to happen."""
        self.run_forever()


class _Jumps(selectors.SelectSelector):
    """Stands where an event loop waits for sockets."""

    def __init__(self, timeline: Timeline, loop: VirtualLoop) -> None:
        super().__init__()
        self._timeline = timeline
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[Any]:
        """Do events of the timeline until the loop has something to call."""
        timeline, loop = self._timeline, self._loop
        loop.woken = False
        until = math.inf if timeout is None else timeline.now() + timeout
        while not loop.woken and timeline.next_at < until:
            timeline.step()
        if loop.woken:
            return []
        if until == math.inf:
            loop.stop()
        else:
            timeline.jump(until)
        return []
