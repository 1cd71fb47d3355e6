"""How far simulated answers are from measured ones: the same requests, compared as distributions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from epp.errors import ConfigError
from epp.recording.record import Record
from epp.sim.demand.traffic import Demand
from epp.sim.fleet.run import run
from epp.sim.fleet.scenario import Scenario
from epp.sim.fleet.story import Story

SHARES = (*tuple(i / 10 for i in range(1, 10)), 0.95)
LEAST_SECONDS = 1e-4
LEAST_REQUESTS = 30  #: of which a distribution says anything


class Errors(msgspec.Struct, frozen=True):
    """Simulated over measured, less one: 0.1 is a tenth too slow."""

    requests: int  #: that were compared
    ttft_p50: float
    ttft_p90: float
    ttft_mape: float  #: mean over the deciles and p95, without sign
    rest_p50: float  #: the time after the first token
    e2e_p50: float
    e2e_p90: float
    e2e_mape: float


class Quality(msgspec.Struct, frozen=True):
    """How well a simulation agrees with what was measured."""

    all: Errors
    classes: Mapping[str, Errors]  #: by class, of those that the trace names
    makespan: float  #: until the last answer; simulated over measured, less one
    lost: int  #: requests that were answered when measured, and not when simulated
    loss: float  #: root mean square of `residuals`


class Pair(NamedTuple):
    """A request, measured and simulated."""

    measured: Record
    simulated: Story


def quality(scenario: Scenario, demand: Demand) -> Quality:
    """Simulate, and say how far that is from what was measured.

    Raises:
        ConfigError: the simulated fleet answers too little to compare.
    """
    pairs, lost = paired(scenario, demand)
    classes: dict[str, list[Pair]] = {}
    for pair in pairs:
        if pair.measured.business:
            classes.setdefault(pair.measured.business, []).append(pair)
    ends = (
        max(each.at + (each.duration or 0.0) for each, _ in pairs),
        max(each.ended_at or 0.0 for _, each in pairs),
    )
    logs = residuals(pairs)
    return Quality(
        all=_errors(pairs),
        classes={name: _errors(of) for name, of in sorted(classes.items())},
        makespan=ends[1] / ends[0] - 1,
        lost=lost,
        loss=math.sqrt(sum(each**2 for each in logs) / len(logs)),
    )


def paired(scenario: Scenario, demand: Demand) -> tuple[list[Pair], int]:
    """Simulate; return the requests that were answered, and how many of them only when measured.

    Raises:
        ConfigError: the simulated fleet answers too little to compare.
    """
    stories = {story.talk: story for story in run(scenario, demand=demand).stories}
    told = [
        Pair(record, stories[i])
        for i, record in enumerate(demand.trace.records)
        if record.ttft and record.duration and not record.outcome
    ]
    pairs = [pair for pair in told if pair.simulated.outcome == "ok"]
    if len(pairs) < LEAST_REQUESTS:
        why = next(pair.simulated.outcome for pair in told if pair.simulated.outcome != "ok")
        raise ConfigError(
            f"the simulated fleet answers {len(pairs)} of {len(told)} measured requests, others "
            f"are {why!r}: are kv_tokens and the fleet's size right?"
        )
    return pairs, len(told) - len(pairs)


def residuals(pairs: Sequence[Pair]) -> list[float]:
    """Logarithms of simulated over measured, of TTFT, the time after it, and E2E, by `SHARES`."""
    found = (_ratios(*_times(pairs, of)) for of in ("ttft", "rest", "e2e"))
    return [math.log(ratio) for ratios in found for ratio in ratios]


def _errors(pairs: Sequence[Pair]) -> Errors:
    ttft, rest, e2e = (_ratios(*_times(pairs, of)) for of in ("ttft", "rest", "e2e"))
    p50, p90 = SHARES.index(0.5), SHARES.index(0.9)
    return Errors(
        len(pairs), ttft[p50] - 1, ttft[p90] - 1, _mape(ttft), rest[p50] - 1,
        e2e[p50] - 1, e2e[p90] - 1, _mape(e2e),
    )  # fmt: skip


def _mape(ratios: Sequence[float]) -> float:
    return sum(abs(ratio - 1) for ratio in ratios) / len(ratios)


def _times(pairs: Sequence[Pair], of: str) -> tuple[list[float], list[float]]:
    """Return seconds, measured and simulated."""
    both = ([pair.measured for pair in pairs], [pair.simulated for pair in pairs])
    ttft, e2e = (
        [[getattr(each, name) or 0.0 for each in side] for side in both]
        for name in ("ttft", "duration")
    )
    if of == "ttft":
        return ttft[0], ttft[1]
    if of == "e2e":
        return e2e[0], e2e[1]
    measured, simulated = (
        [whole - first for whole, first in zip(a, b, strict=True)]
        for a, b in zip(e2e, ttft, strict=True)
    )
    return measured, simulated


def _ratios(measured: Sequence[float], simulated: Sequence[float]) -> list[float]:
    """Return simulated over measured at each of `SHARES`."""
    ours = np.maximum(np.quantile(simulated, SHARES), LEAST_SECONDS)
    theirs = np.maximum(np.quantile(measured, SHARES), LEAST_SECONDS)
    return [float(ratio) for ratio in ours / theirs]
