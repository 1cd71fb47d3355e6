"""How surely the fitted numbers are known: by what each of them changes, and how alike that is.

Around the fit, what is compared is taken as a line in the numbers; two numbers that change the same
things in the same way are told apart badly, and so are those that change little. What is left of the
error after the fit counts as noise, `NOISE` of it at least, since simulated engines are not
real ones.

**Source:** the covariance of linear least squares, ``noise**2 * inverse(J' J)``.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np

from epp.sim.calibrate.fit import NOISE, UNITS, Numbers, corrected, in_units
from epp.sim.calibrate.quality import paired, residuals
from epp.sim.demand.traffic import Demand
from epp.sim.fleet.scenario import Scenario

DEVIATIONS = 2.0  #: each way, of an interval of 95 %
MOVES = (-2.0, -1.0, 1.0, 2.0)  #: in `UNITS`; several, since queues make single ones jump
LEAST = 1e-6  #: of a number, in `UNITS`
RIDGE = 1e-9  #: so that what changes nothing has a wide interval, and not none
RUNS = len(MOVES) * len(UNITS)


class Interval(msgspec.Struct, frozen=True):
    """Where a number is, at 95 %."""

    low: float
    high: float

    @property
    def spread(self) -> float:
        """Half its width over its middle."""
        return (self.high - self.low) / (self.high + self.low)


def intervals(
    scenario: Scenario, demand: Demand, found: Numbers, loss: float,
    tell: Callable[[], None] = lambda: None,
) -> dict[str, Interval]:  # fmt: skip
    """Return an interval of each number by its name; ``tell`` hears of each of `RUNS` runs."""

    def at(point: np.ndarray) -> np.ndarray:
        pairs, _ = paired(corrected(scenario, in_units(tuple(point.tolist()))), demand)
        tell()
        return np.array(residuals(pairs))

    point = np.array([value / unit for value, unit in zip(found, UNITS, strict=True)])
    slopes = np.array([_slope(at, point, i) for i in range(len(point))]).T
    information = slopes.T @ slopes + RIDGE * np.eye(len(point))
    noise = max(loss, NOISE)
    deviations = noise * np.sqrt(np.diag(np.linalg.inv(information)))
    below = in_units(tuple(np.maximum(point - DEVIATIONS * deviations, 0.0).tolist()))
    above = in_units(tuple((point + DEVIATIONS * deviations).tolist()))
    return {
        name: Interval(low, high)
        for name, low, high in zip(Numbers._fields, below, above, strict=True)
    }


def _slope(at: Callable[[np.ndarray], np.ndarray], point: np.ndarray, i: int) -> np.ndarray:
    """Return the slopes of a line through what comes of moving one number."""
    places = [max(point[i] + move, LEAST) for move in MOVES]
    values = []
    for place in places:
        moved = point.copy()
        moved[i] = place
        values.append(at(moved))
    away = np.array(places) - np.mean(places)
    return np.asarray(away @ np.array(values) / (away @ away))
