"""Fits five numbers of a fleet's engines to a trace that tells how its answers went.

They are: factors of all prefill and of all decode constants of the profile, seconds of every step
and of every sequence in it, and seconds of every request before it is queued. The same requests at
the same moments are simulated again and again, so queues count as they were, and what is compared
are distributions: deciles of TTFT, of the time after it, and of the whole, by the logarithm of
simulated over measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from epp.sim.calibrate.quality import Quality, paired, quality, residuals
from epp.sim.calibrate.search import Point, least_squares
from epp.sim.demand.traffic import Demand
from epp.sim.fleet.scenario import Correction, Pods, Scenario


class Numbers(NamedTuple):
    """What is fitted."""

    prefill: float  #: factor
    decode: float  #: factor
    step: float  #: seconds
    sequence: float  #: seconds, of each that decodes in a step
    request: float  #: seconds


START = Numbers(1.0, 1.0, 0.002, 0.00002, 0.01)
UNITS = Numbers(0.1, 0.1, 0.001, 0.00002, 0.01)  #: in which they are looked for
USUAL = Numbers(0.3, 0.3, 0.002, 0.00004, 0.1)
"""How far servers are from `START`: what a trace tells little of stays near it.

The log of an engine that is full all the time tells hardly apart what makes it slow; left free, such
numbers go to an end, and carry over to no other engine.
"""
NOISE = 0.02  #: of what is compared; so far a number must help to go as far as `USUAL`
WIDTHS = (0.3, 0.3, 1.0, 1.0, 1.0)  #: of the first look by `search.least`, in logarithms


class Fitted(msgspec.Struct, frozen=True):
    """What was found."""

    numbers: Numbers
    before: Quality  #: with the profile as it is
    after: Quality


def fit(
    scenario: Scenario,
    demand: Demand,
    *,
    calls: int = 60,
    tell: Callable[[], None] = lambda: None,
) -> Fitted:
    """Find the five numbers with about ``calls`` simulations; ``tell`` hears of each."""

    def misses(point: Point) -> list[float]:
        tell()
        numbers = in_units(point)
        pairs, _ = paired(corrected(scenario, numbers), demand)
        away = (NOISE * (a - b) / c for a, b, c in zip(numbers, START, USUAL, strict=True))
        return [*residuals(pairs), *away]

    begin = [value / unit for value, unit in zip(START, UNITS, strict=True)]
    found = in_units(least_squares(misses, begin, calls))
    return Fitted(found, quality(scenario, demand), quality(corrected(scenario, found), demand))


def in_units(point: Point) -> Numbers:
    """Return the numbers that are told in `UNITS`."""
    return Numbers(*(value * unit for value, unit in zip(point, UNITS, strict=True)))


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


def numbers(point: Point) -> Numbers:
    """Return the numbers whose logarithms make a point."""
    return Numbers(*(math.exp(min(max(each, -14.0), 4.0)) for each in point))
