"""When conversations begin, and their later turns: at their times, or so many at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from epp.sim.demand.traffic import Demand
from epp.sim.demand.work import Job, jobs_of
from epp.sim.fleet.timeline import Timeline

Ask = Callable[[list[Job], int], None]  #: the requests of a conversation, and which is asked


class Talks:
    """All conversations of a run.

    Args:
        demand: what they are.
        timeline: when they are asked.
        at_once: so many are under way; 0: each begins at its time.
        ask: is called with each request when it is due.
    """

    def __init__(self, demand: Demand, timeline: Timeline, *, at_once: int, ask: Ask) -> None:
        self._demand = demand
        self._timeline = timeline
        self._at_once = at_once
        self._ask = ask
        self._queue: deque[int] = deque()  # those that wait, in a closed loop

    def begin_all(self) -> None:
        """Begin, or plan to."""
        if not self._at_once:
            self._arrive(0)
            return
        self._queue.extend(range(len(self._demand.talks)))
        for _ in range(self._at_once):
            self._begin_next()

    def go_on(self, jobs: list[Job], turn: int, asked_at: float) -> None:
        """Request ``turn``, asked at ``asked_at``, is over at this moment."""
        now = self._timeline.now()
        if turn + 1 == len(jobs):
            if self._at_once:
                self._begin_next()
            return
        step = self._demand.talks[jobs[turn].talk].steps[turn + 1]
        due = now + step.think if step.think is not None else asked_at + step.gap
        self._timeline.at(max(due, now), self._ask, jobs, turn + 1)

    def _arrive(self, position: int) -> None:
        """Begin conversation ``position`` at its time, then look for the next one."""
        talks = self._demand.talks
        if position < len(talks):
            self._timeline.at(talks[position].begins_at, self._begin_and_go_on, position)

    def _begin_and_go_on(self, position: int) -> None:
        self._arrive(position + 1)
        self._begin(position)

    def _begin_next(self) -> None:
        if self._queue:
            self._begin(self._queue.popleft())

    def _begin(self, position: int) -> None:
        self._ask(jobs_of(self._demand.talks[position], position), 0)
