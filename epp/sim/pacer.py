"""Runs an engine's virtual time along real time on an event loop.

Virtual seconds are real ones times ``speed``. A step ends at a moment reckoned from the step
before, not from when the loop found time for it, so delays do not add up: a late loop
does the steps it missed at once. If it is later than `PATIENCE` real seconds (the process was
stopped, or steps cost more than they may), the timeline starts again from now.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from epp.sim.engine import Engine
from epp.sim.model import Finished, Request, StepResult

PATIENCE = 1.0  #: real seconds
BURST = 64  #: steps done at once before other work gets its turn


class Pacer:
    """Drives one engine; all methods are called on the event loop it was made on."""

    def __init__(
        self,
        engine: Engine,
        *,
        speed: float,
        on_step: Callable[[StepResult], None],
        on_fetch: Callable[[str], None] = lambda request_id: None,
    ) -> None:
        """Start the clock.

        Args:
            engine: to drive.
            speed: virtual seconds per real one.
            on_step: called with each step's result at its end.
            on_fetch: called with each request whose KV another engine has; `fetched` is the answer.
        """
        self.engine = engine
        self._speed = speed
        self._on_step = on_step
        self._on_fetch = on_fetch
        self._loop = asyncio.get_running_loop()
        self._origin = self._loop.time()
        self._timer: asyncio.Handle | None = None
        self._end: float | None = None  #: virtual end of the step under way
        self._asleep = False

    def now(self) -> float:
        """Virtual seconds since the start."""
        return (self._loop.time() - self._origin) * self._speed

    def submit(self, request: Request) -> None:
        """See `Engine.submit`."""
        self.engine.submit(request, self.now())
        self._set_off()

    def abort(self, request_id: str) -> Finished | None:
        """See `Engine.abort`."""
        return self.engine.abort(request_id, self.now())

    def fetched(self, request_id: str, *, good: bool) -> None:
        """See `Engine.fetched`."""
        self.engine.fetched(request_id, good=good)
        self._set_off()

    @property
    def asleep(self) -> bool:
        """Requests are taken but nothing is computed."""
        return self._asleep

    def sleep(self) -> None:
        """Compute nothing until `wake`; the step under way ends then."""
        self._asleep = True
        self.stop()

    def wake(self) -> None:
        """Go on."""
        self._asleep = False
        self._set_off()

    def _set_off(self) -> None:
        """Run in the next turn of the loop, so that requests of this turn share the first step."""
        if self._timer is None and not self._asleep:
            self._timer = self._loop.call_soon(self._run)

    def stop(self) -> None:
        """Do nothing more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _run(self) -> None:
        """Do all that is due, and set the timer for what is not."""
        self._timer = None
        now = self.now()
        if self._end is not None and now - self._end > PATIENCE * self._speed:
            self._end = now
        for _ in range(BURST):
            if self._end is None:
                start = now
            else:
                if self._end > now:
                    self._arm(self._end)
                    return
                start, self._end = self._end, None
                self._on_step(self.engine.complete(start))
            duration = self.engine.begin(start)
            for request_id in self.engine.to_fetch():
                self._fetch(request_id)
            if duration is None:
                return
            self._end = start + duration
        self._timer = self._loop.call_soon(self._run)

    def _fetch(self, request_id: str) -> None:
        """Have a request go on once what it waits for is here."""
        ends = self.engine.load_ends(request_id)
        if ends is None:
            self._on_fetch(request_id)
        else:
            when = self._origin + ends / self._speed
            self._loop.call_at(when, partial(self.fetched, request_id, good=True))

    def _arm(self, virtual: float) -> None:
        self._timer = self._loop.call_at(self._origin + virtual / self._speed, self._run)
