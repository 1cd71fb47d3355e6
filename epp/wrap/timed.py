"""Measures what decisions, and the plugins in them, cost.

Every decision is timed. Single calls of plugins are timed in one decision of `EVERY` only: two
clock readings and a histogram around each of some ten calls would be a good part of what a
decision costs. The sampled decision runs the same plugins through wrappers; the others run them
bare and pay for one look at a counter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import cycle
from types import SimpleNamespace
from typing import Any, Protocol

import msgspec

from epp.clock import Clock
from epp.model import Endpoint, InferenceRequest, Pick
from epp.plugin import type_of
from epp.schedule.profile import Profile
from epp.schedule.scheduler import Scheduler

EVERY = 16


class Timings(Protocol):
    """Takes durations in seconds; see `telemetry.metrics.Metrics`."""

    def scheduled(self, seconds: float) -> None:
        """A decision took this long."""
        ...

    def plugin_ran(self, point: str, kind: str, name: str, seconds: float) -> None:
        """A call of the plugin ``name``, of type ``kind``, took this long."""
        ...


class Stopwatch:
    """Times calls of one pipeline's plugins.

    Args:
        clock: tells the time.
        timings: takes it.
        plugins: instances by name.
    """

    def __init__(self, clock: Clock, timings: Timings, plugins: Mapping[str, Any]) -> None:
        self.clock = clock
        self.timings = timings
        self._names = {id(made): name for name, made in plugins.items()}

    def timed(self, made: Any, method: str, point: str) -> Callable[..., Any]:
        """Return ``made``'s method, timed as a call at the extension point ``point``."""
        call, now, tell = getattr(made, method), self.clock.now, self.timings.plugin_ran
        name = self._names.get(id(made), "")
        kind = type_of(made)

        def run(*args: Any) -> Any:
            began = now()
            result = call(*args)
            tell(point, kind, name, now() - began)
            return result

        return run


class TimedScheduler(Scheduler, frozen=True, kw_only=True):
    """A scheduler that says what its decisions cost."""

    sampled: Scheduler  #: the same, with timed plugins
    clock: Clock
    timings: Timings
    turns: Iterator[bool]  #: whether the next decision is a sampled one

    def pick(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> Pick:
        """See `Scheduler.pick`."""
        began = self.clock.now()
        try:
            if next(self.turns):
                return self.sampled.pick(request, endpoints)
            return Scheduler.pick(self, request, endpoints)
        finally:
            self.timings.scheduled(self.clock.now() - began)


class TimedEnricher:
    """An enricher that says now and then what a call costs; not what it waits for."""

    def __init__(self, inner: Any, stopwatch: Stopwatch) -> None:
        self._plain = inner.enrich
        self._timed = stopwatch.timed(inner, "enrich", "DataProducer")
        self._turns = _turns()

    def enrich(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> Any:
        """See `plugin.Enricher.enrich`."""
        enrich = self._timed if next(self._turns) else self._plain
        return enrich(request, endpoints)


def time_scheduler(scheduler: Scheduler, stopwatch: Stopwatch) -> Scheduler:
    """Return a scheduler that decides as ``scheduler`` does, timed."""
    profiles = {
        name: _timed_profile(profile, stopwatch) for name, profile in scheduler.profiles.items()
    }
    return TimedScheduler(
        scheduler.profiles,
        scheduler.handler,
        scheduler.with_scores,
        scheduler.witness,
        scheduler.forecaster,
        sampled=msgspec.structs.replace(scheduler, profiles=profiles),
        clock=stopwatch.clock,
        timings=stopwatch.timings,
        turns=_turns(),
    )


def _timed_profile(profile: Profile, stopwatch: Stopwatch) -> Profile:
    def wrapped(made: Any, method: str, point: str) -> Any:
        call = stopwatch.timed(made, method, point)
        return SimpleNamespace(type=type_of(made), **{method: call})

    return msgspec.structs.replace(
        profile,
        filters=tuple(wrapped(each, "filter", "Filter") for each in profile.filters),
        scorers=tuple(
            (wrapped(each, "score", "Scorer"), weight) for each, weight in profile.scorers
        ),
        picker=wrapped(profile.picker, "pick", "Picker"),
    )


def _turns() -> Iterator[bool]:
    """True, then `EVERY` - 1 times False, and so on."""
    return cycle([True] + [False] * (EVERY - 1))
