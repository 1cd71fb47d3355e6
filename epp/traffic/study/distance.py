"""How far apart two samples are, and how sure one may be of a percentile.

**Source:** Wasserstein-1 distance in one dimension is the area between the two distribution
functions; Efron, "Bootstrap methods", 1979; David and Nagaraja, "Order Statistics", 2003, for the
interval of a percentile that holds whatever the distribution is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

CONFIDENCE = 0.95
ROUNDS = 1000  #: of the bootstrap


class Interval(msgspec.Struct, frozen=True):
    """A value and where it may lie with `CONFIDENCE`."""

    value: float
    low: float
    high: float


def wasserstein(first: Sequence[float] | Floats, second: Sequence[float] | Floats) -> float:
    """Return the Wasserstein-1 distance, in the unit of the values; 0.0 if either is empty."""
    one, two = (np.sort(np.asarray(each, dtype=np.float64)) for each in (first, second))
    if not len(one) or not len(two):
        return 0.0
    every = np.sort(np.concatenate((one, two)))
    below = np.searchsorted(one, every[:-1], side="right") / len(one)
    other = np.searchsorted(two, every[:-1], side="right") / len(two)
    return float((np.abs(below - other) * np.diff(every)).sum())


def percentile_interval(
    values: Sequence[float] | Floats, percent: float, *, seed: int = 1
) -> Interval:
    """Return a percentile with its bootstrap interval."""
    known = np.asarray(values, dtype=np.float64)
    random = np.random.default_rng(seed)
    drawn = [float(np.percentile(random.choice(known, len(known)), percent)) for _ in range(ROUNDS)]
    edge = (1 - CONFIDENCE) / 2 * 100
    low, high = np.percentile(drawn, (edge, 100 - edge))
    return Interval(float(np.percentile(known, percent)), float(low), float(high))


def least_sample(percent: float) -> int:
    """Return the smallest sample that says anything of a percentile with `CONFIDENCE`.

    From it on, the percentile lies between the smallest and the largest value: 299 for the 99th.
    With fewer, all of them are too likely on one side of it.
    """
    share = percent / 100
    count = 1
    while share**count + (1 - share) ** count > 1 - CONFIDENCE:
        count += 1
    return count


def sample_for(values: Sequence[float] | Floats, percent: float, width: float = 0.1) -> int | None:
    """Return how many values a percentile needs to be known within ``width`` of itself.

    The interval shrinks with the root of the number, so it follows from the one that ``values``
    have; never below `least_sample`. None if there are too few to tell.
    """
    if len(values) < least_sample(percent):
        return None
    found = percentile_interval(values, percent)
    if found.value <= 0:
        return None
    half = (found.high - found.low) / 2 / found.value
    return max(math.ceil(len(values) * (half / width) ** 2), least_sample(percent))
