"""Do two traces agree? Their lengths, their gaps, what a cache finds in them, and how they went."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec
import numpy as np

from epp.recording.record import Record
from epp.traffic.sessions import conversations
from epp.traffic.study.arrivals import detick
from epp.traffic.study.distance import Interval, percentile_interval, sample_for, wasserstein
from epp.traffic.study.reuse import reuse
from epp.traffic.trace import Trace

SIZES = (0.01, 0.03, 0.05, 0.1, 0.25, 0.5, 1.0)  #: of caches, in all blocks of the first trace
PERCENT = (50.0, 99.0)  #: of TTFT


class Distance(msgspec.Struct, frozen=True):
    """How far apart one quantity is."""

    name: str
    first_mean: float
    second_mean: float
    distance: float | None  #: Wasserstein-1, in the quantity's unit; None if only one has it
    share: float | None  #: of the first one's mean; None if that is 0 and the other's is not


class Hit(msgspec.Struct, frozen=True):
    """What an LRU cache of one size finds in each."""

    cache_tokens: int
    first: float  #: share of prompt tokens, 0.0 to 1.0
    second: float


class Ttft(msgspec.Struct, frozen=True):
    """A percentile of the time to the first token, in seconds."""

    percent: float
    first: Interval
    second: Interval
    needed: int | None  #: requests to know the first one within a tenth; None: too few to tell

    @property
    def differ(self) -> bool:
        """Whether it cannot be chance: the intervals do not meet."""
        return self.first.high < self.second.low or self.second.high < self.first.low


class Comparison(msgspec.Struct, frozen=True):
    """Two traces, side by side."""

    requests: tuple[int, int]
    distances: tuple[Distance, ...]
    hits: tuple[Hit, ...]
    ttfts: tuple[Ttft, ...]  #: none if either does not tell

    @property
    def worst_hit(self) -> float:
        """The largest difference of the hit rates, 0.0 to 1.0."""
        return max((abs(each.first - each.second) for each in self.hits), default=0.0)


def compare(first: Trace, second: Trace) -> Comparison:
    """Compare two traces."""
    return Comparison(
        requests=(len(first.records), len(second.records)),
        distances=tuple(
            _distance(name, a, b)
            for (name, a), (_, b) in zip(_quantities(first), _quantities(second), strict=True)
        ),
        hits=_hits(first, second),
        ttfts=_ttfts(first.records, second.records),
    )


def _quantities(trace: Trace) -> list[tuple[str, Sequence[float]]]:
    records = trace.records
    talks = conversations(trace)
    turns = [(b.record, a.record) for talk in talks for a, b in pairwise(talk)]
    return [
        ("input tokens", [record.input_tokens for record in records]),
        ("output tokens", [record.output_tokens for record in records]),
        ("turns", [len(talk) for talk in talks]),
        ("gap of requests, s", np.diff(detick([record.at for record in records])).tolist()),
        ("gap of turns, s", [later.at - before.at for later, before in turns]),
    ]


def _distance(name: str, first: Sequence[float], second: Sequence[float]) -> Distance:
    means = [float(np.mean(each)) if len(each) else 0.0 for each in (first, second)]
    if bool(len(first)) != bool(len(second)):
        return Distance(name, means[0], means[1], None, None)
    apart = wasserstein(first, second)
    share = apart / means[0] if means[0] else (None if apart else 0.0)
    return Distance(name, means[0], means[1], apart, share)


def _hits(first: Trace, second: Trace) -> tuple[Hit, ...]:
    one, two = reuse(first), reuse(second)
    sizes = [round(share * one.unique_tokens) + 1 for share in SIZES]
    return tuple(Hit(size, one.hit_rate(size), two.hit_rate(size)) for size in sizes)


def _ttfts(first: Sequence[Record], second: Sequence[Record]) -> tuple[Ttft, ...]:
    one, two = ([r.ttft for r in each if r.ttft is not None] for each in (first, second))
    if not one or not two:
        return ()
    return tuple(
        Ttft(percent, percentile_interval(one, percent), percentile_interval(two, percent),
             sample_for(one, percent))
        for percent in PERCENT
    )  # fmt: skip
