"""Fits five numbers of a fleet's engines to a trace that tells how its answers went.

They are: factors of all prefill and of all decode constants of the profile, seconds of every step
and of every sequence in it, and seconds of every request before it is queued. The same requests at the same moments are simulated
again and again, so queues count as they were, and what is compared are distributions: deciles of
TTFT, of the time after it, and of the whole, by the logarithm of simulated over measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from epp.recording.record import Record
from epp.sim.calibrate.search import Point, least
from epp.sim.demand.traffic import Demand
from epp.sim.fleet.run import run
from epp.sim.fleet.scenario import Correction, Pods, Scenario
from epp.sim.fleet.story import Story
from epp.traffic.replay.plan import Step, Talk
from epp.traffic.trace import Trace, TraceError


class Numbers(NamedTuple):
    """What is fitted."""

    prefill: float  #: factor
    decode: float  #: factor
    step: float  #: seconds
    sequence: float  #: seconds, of each that decodes in a step
    request: float  #: seconds


SHARES = (*tuple(i / 10 for i in range(1, 10)), 0.95)
LEAST_REQUESTS = 30
LEAST_SECONDS = 1e-4
START = Numbers(1.0, 1.0, 0.002, 0.00002, 0.01)
WIDTHS = (0.3, 0.3, 1.0, 1.0, 1.0)  #: of the first look, in logarithms


class Quality(msgspec.Struct, frozen=True):
    """Simulated over measured, less one: 0.1 is a tenth too slow."""

    ttft_p50: float
    ttft_p90: float
    rest_p50: float  #: the time after the first token
    e2e_p50: float
    e2e_p90: float
    makespan: float  #: until the last answer
    loss: float  #: what was made small


class Fitted(msgspec.Struct, frozen=True):
    """What was found."""

    numbers: Numbers
    before: Quality  #: with the profile as it is
    after: Quality


def demand_measured(trace: Trace) -> Demand:
    """Return the requests of a trace at their own moments.

    Raises:
        TraceError: too few of them tell how long their answers took.
    """
    told = [each for each in trace.records if each.ttft and each.duration and not each.outcome]
    if len(told) < LEAST_REQUESTS:
        raise TraceError(
            f"{len(told)} requests tell TTFT and duration (ttft_ms, e2e_ms); "
            f"{LEAST_REQUESTS} are needed"
        )
    talks = [Talk(each.at, (Step(each, str(i)),)) for i, each in enumerate(trace.records)]
    return Demand(talks, trace.block_tokens, trace)


def fit(
    scenario: Scenario,
    demand: Demand,
    *,
    calls: int = 80,
    tell: Callable[[int, int], None] | None = None,
) -> Fitted:
    """Find the five numbers; ``tell`` hears of the progress."""
    done = 0

    def loss(point: Point) -> float:
        nonlocal done
        done += 1
        if tell is not None:
            tell(done, calls)
        return quality(corrected(scenario, numbers(point)), demand).loss

    begin = tuple(math.log(value) for value in START)
    found = numbers(least(loss, begin, WIDTHS, calls))
    return Fitted(found, quality(scenario, demand), quality(corrected(scenario, found), demand))


def corrected(scenario: Scenario, found: Numbers) -> Scenario:
    """Return the scenario with engines that are so much slower than the table."""
    correction = Correction(
        prefill=found.prefill,
        decode=found.decode,
        step_seconds=found.step,
        sequence_seconds=found.sequence,
    )
    fleet: tuple[Pods, ...] = tuple(
        msgspec.structs.replace(pods, correction=correction, request_seconds=found.request)
        for pods in scenario.fleet
    )
    return msgspec.structs.replace(scenario, fleet=fleet)


def quality(scenario: Scenario, demand: Demand) -> Quality:
    """Simulate, and say how far that is from what was measured."""
    outcome = run(scenario, demand=demand)
    simulated = {story.talk: story for story in outcome.stories}
    records = demand.trace.records
    pairs = [
        (record, simulated[i])
        for i, record in enumerate(records)
        if record.ttft and record.duration and simulated[i].outcome == "ok"
    ]
    return compare([record for record, _ in pairs], [story for _, story in pairs])


def compare(measured: Sequence[Record], simulated: Sequence[Story]) -> Quality:
    """Compare two sets of the same requests."""
    ttft = _ratios(
        [each.ttft or 0.0 for each in measured], [each.ttft or 0.0 for each in simulated]
    )
    rest = _ratios(
        [(each.duration or 0.0) - (each.ttft or 0.0) for each in measured],
        [(each.duration or 0.0) - (each.ttft or 0.0) for each in simulated],
    )
    e2e = _ratios(
        [each.duration or 0.0 for each in measured], [each.duration or 0.0 for each in simulated]
    )
    ends = (
        max(each.at + (each.duration or 0.0) for each in measured),
        max(each.ended_at or 0.0 for each in simulated),
    )
    logs = [math.log(each) ** 2 for each in (*ttft, *rest, *e2e)]
    return Quality(
        ttft[4] - 1, ttft[8] - 1, rest[4] - 1, e2e[4] - 1, e2e[8] - 1,
        ends[1] / ends[0] - 1, math.sqrt(sum(logs) / len(logs)),
    )  # fmt: skip


def numbers(point: Point) -> Numbers:
    """Return the numbers whose logarithms make a point."""
    return Numbers(*(math.exp(min(max(each, -14.0), 4.0)) for each in point))


def _ratios(measured: Sequence[float], simulated: Sequence[float]) -> list[float]:
    """Return simulated over measured at each of `SHARES`."""
    ours = np.maximum(np.quantile(simulated, SHARES), LEAST_SECONDS)
    theirs = np.maximum(np.quantile(measured, SHARES), LEAST_SECONDS)
    return [float(ratio) for ratio in ours / theirs]
