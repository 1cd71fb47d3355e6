"""Several runs that differ in their seed: means, intervals, and paired differences; pure.

**Source:** intervals are Student's t at 95 %; differences of two scenarios are taken seed by seed,
with the same traffic, so what a seed does to both cancels out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, stdev

import msgspec

from epp.sim.report.figures import Figures, Spread, Summary

_T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.16,
        2.145, 2.131, 2.12, 2.11, 2.101, 2.093, 2.086, 2.08, 2.074, 2.069, 2.064, 2.06, 2.056,
        2.052, 2.048, 2.045, 2.042)  # fmt: skip
"""Student's t, two-sided 95 %, by degrees of freedom from 1 on; 1.96 beyond."""


class Interval(msgspec.Struct, frozen=True):
    """A mean over seeds, and where it lies with 95 %; both ends are the mean of one seed only."""

    mean: float
    low: float
    high: float
    values: tuple[float, ...]  #: by seed

    @property
    def half(self) -> float:
        """Half of its width."""
        return (self.high - self.low) / 2


class Difference(msgspec.Struct, frozen=True):
    """One figure of two scenarios."""

    name: str
    one: Interval
    other: Interval
    change: Interval  #: other less one, seed by seed

    @property
    def is_clear(self) -> bool:
        """Whether chance would seldom do that: the interval has zero outside."""
        several = len(self.change.values) > 1
        return several and not self.change.low <= 0.0 <= self.change.high


Measure = Callable[[Summary], float | None]


def _spread(pick: Callable[[Figures], Spread | None], percent: str) -> Measure:
    def measured(summary: Summary) -> float | None:
        spread = pick(summary.all)
        return None if spread is None else float(getattr(spread, percent))

    return measured


MEASURES: Mapping[str, Measure] = {
    "ttft_p50": _spread(lambda f: f.ttft, "p50"),
    "ttft_p90": _spread(lambda f: f.ttft, "p90"),
    "ttft_p99": _spread(lambda f: f.ttft, "p99"),
    "tpot_p50": _spread(lambda f: f.tpot, "p50"),
    "tpot_p99": _spread(lambda f: f.tpot, "p99"),
    "e2e_p50": _spread(lambda f: f.e2e, "p50"),
    "e2e_p99": _spread(lambda f: f.e2e, "p99"),
    "goodput": lambda summary: summary.all.goodput,
    "output_tokens_per_second": lambda summary: summary.all.output_tokens_per_second,
    "hit_rate": lambda summary: summary.all.hit_rate,
    "regret": lambda summary: summary.all.regret,
    "imbalance": lambda summary: summary.routing.imbalance,
    "flaps": lambda summary: summary.routing.flaps,
    "elsewhere": lambda summary: summary.routing.elsewhere,
}
"""Figures that are compared; times in seconds."""


def interval(values: Sequence[float]) -> Interval:
    """Return mean and 95 % interval of ``values``, of which there is at least one."""
    mean, count = fmean(values), len(values)
    half = 0.0
    if count > 1:
        t = _T95[count - 2] if count - 2 < len(_T95) else 1.96
        half = t * stdev(values) / math.sqrt(count)
    return Interval(mean, mean - half, mean + half, tuple(values))


def over_seeds(runs: Sequence[Summary]) -> dict[str, Interval]:
    """Return each figure of one scenario; those that a run lacks are left out."""
    found: dict[str, Interval] = {}
    for name, measure in MEASURES.items():
        values = [measure(run) for run in runs]
        known = [value for value in values if value is not None]
        if known and len(known) == len(values):
            found[name] = interval(known)
    return found


def compared(one: Sequence[Summary], other: Sequence[Summary]) -> list[Difference]:
    """Compare runs seed by seed: ``one[i]`` and ``other[i]`` have the same.

    Raises:
        ValueError: the seeds are not the same.
    """
    if [run.seed for run in one] != [run.seed for run in other]:
        raise ValueError("runs to compare have the same seeds, in the same order")
    left, right = over_seeds(one), over_seeds(other)
    return [
        Difference(
            name,
            left[name],
            right[name],
            interval([b - a for a, b in zip(left[name].values, right[name].values, strict=True)]),
        )
        for name in left
        if name in right
    ]
