"""Rates, shares and percentiles of what was counted, and a pod's row. Pure.

Everywhere here None means "not measured". It is never 0: a dashboard that shows no errors
because it sees nothing is worse than none.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, pairwise
from operator import add, sub
from typing import Any

import msgspec

from epp.ledger import InFlight
from epp.model import Endpoint
from epp.page.traffic import Recent

RATE_SECONDS = 10.0  #: what "per second" is averaged over
SHARE_SECONDS = 60.0  #: what shares and percentiles look back over
STEP_SECONDS = 5.0  #: between two points of a history
STATES = ("ready", "draining", "unreachable", "asleep", "stale")


class Sample(msgspec.Struct, frozen=True):
    """The process's counts at one moment; all of them only grow."""

    at: float  #: seconds on `Clock.now()`
    requests: float = 0.0  #: that came: sent to an endpoint, or refused
    ended: float = 0.0  #: that are over, refused ones included
    errors: float = 0.0  #: of `ended`: failed or refused
    blocks: int = 0  #: full prompt blocks of what was sent
    held: int = 0  #: of `blocks`: believed to be held where the request went
    prompts: int = 0  #: requests whose prompt tokens the engine told
    prompt_tokens: float = 0.0  #: of those
    cached: int = 0  #: requests whose cached tokens the engine told
    cached_tokens: float = 0.0  #: of those
    first_byte: tuple[int, ...] = ()  #: time to the first byte, by bucket, not cumulative
    decision: tuple[int, ...] = ()  #: time of one decision, the same
    answers: int = 0  #: whose first byte was seen
    waiting: float = 0.0  #: seconds that these waited for leave to go on
    picker: float = 0.0  #: seconds of the picker's work on them
    engine: float = 0.0  #: seconds from there to their first bytes


class Buckets(msgspec.Struct, frozen=True):
    """Upper bounds in seconds of the histograms in a `Sample`, without +Inf."""

    first_byte: tuple[float, ...]
    decision: tuple[float, ...]


class Summary(msgspec.Struct, frozen=True):
    """The whole picker in a few numbers. Seconds, shares of 1; None: not measured."""

    requests_per_second: float | None
    error_share: float | None
    hit_rate: float | None  #: expected by the picker, of full prompt blocks
    engine_hit_rate: float | None  #: told by the engines, of prompt tokens
    ttft_p50: float | None
    ttft_p99: float | None
    ttft_waiting: float | None  #: mean: what the first byte waited for
    ttft_picker: float | None
    ttft_engine: float | None
    decision_p50: float | None
    decision_p99: float | None


class History(msgspec.Struct, frozen=True):
    """The same over time, oldest first; one point each `step` seconds."""

    step: float
    requests_per_second: list[float | None]
    error_share: list[float | None]
    hit_rate: list[float | None]
    ttft_p50: list[float | None]


class Row(msgspec.Struct, frozen=True, array_like=True):
    """One pod. Encoded as a list, since there may be thousands; see `COLUMNS`."""

    name: str
    address: str
    state: str  #: one of `STATES`
    running: float | None
    waiting: float | None
    kv_usage: float | None  #: 0.0 to 1.0
    in_flight: int  #: sent by this picker and not ended
    in_flight_tokens: int  #: uncached prompt tokens of those
    requests_per_second: float
    error_share: float | None
    hit_rate: float | None
    age: float | None  #: seconds since its last scrape; None: no load is known


COLUMNS = Row.__struct_fields__


def share(part: float, whole: float) -> float | None:
    """``part`` of ``whole``, at most 1; None of nothing."""
    return min(part / whole, 1.0) if whole > 0 else None


def quantile(q: float, counts: Sequence[int], bounds: Sequence[float]) -> float | None:
    """The value below which a share ``q`` of the observations lies; None without any.

    ``counts`` by bucket, not cumulative, one longer than ``bounds``: the last has no upper
    bound, and what falls there is told as the highest bound.

    **Source:** Prometheus' ``histogram_quantile``: linear inside a bucket, the first from 0.
    """
    below = list(accumulate(counts))
    if not below or not below[-1]:
        return None
    rank = q * below[-1]
    place = next(i for i, count in enumerate(below) if count >= rank and counts[i])
    if place >= len(bounds):
        return bounds[-1]
    low = bounds[place - 1] if place else 0.0
    before = below[place] - counts[place]
    return low + (bounds[place] - low) * (rank - before) / counts[place]


def difference(newer: Sample, older: Sample) -> Sample:
    """What was counted between two samples; `at` is the seconds between them."""
    pairs = zip(msgspec.structs.astuple(newer), msgspec.structs.astuple(older), strict=True)
    fields: list[Any] = [
        tuple(map(sub, new, old)) if isinstance(new, tuple) else new - old for new, old in pairs
    ]
    return Sample(*fields)


def before(samples: Sequence[Sample], seconds: float) -> Sample:
    """The newest sample that is ``seconds`` older than the last; the first if none is."""
    place = bisect_right(samples, samples[-1].at - seconds, key=lambda sample: sample.at)
    return samples[max(place - 1, 0)]


def summarise(samples: Sequence[Sample], buckets: Buckets) -> Summary:
    """Read the latest numbers off samples, oldest first; at least one."""
    recent = difference(samples[-1], before(samples, RATE_SECONDS))
    longer = difference(samples[-1], before(samples, SHARE_SECONDS))
    return Summary(
        requests_per_second=_rate(recent),
        error_share=share(longer.errors, longer.ended),
        hit_rate=share(longer.held, longer.blocks),
        engine_hit_rate=_engine_hit_rate(longer),
        ttft_p50=quantile(0.5, longer.first_byte, buckets.first_byte),
        ttft_p99=quantile(0.99, longer.first_byte, buckets.first_byte),
        ttft_waiting=_mean(longer.waiting, longer.answers),
        ttft_picker=_mean(longer.picker, longer.answers),
        ttft_engine=_mean(longer.engine, longer.answers),
        decision_p50=quantile(0.5, longer.decision, buckets.decision),
        decision_p99=quantile(0.99, longer.decision, buckets.decision),
    )


def history(samples: Sequence[Sample], buckets: Buckets) -> History:
    """Points over time from samples, oldest first."""
    steps = [difference(newer, older) for older, newer in pairwise(_thin(samples))]

    def points(of: Callable[[Sample], float | None]) -> list[float | None]:
        return [rounded(of(step)) for step in steps]

    return History(
        step=STEP_SECONDS,
        requests_per_second=points(_rate),
        error_share=points(lambda step: share(step.errors, step.ended)),
        hit_rate=points(lambda step: share(step.held, step.blocks)),
        ttft_p50=points(lambda step: quantile(0.5, step.first_byte, buckets.first_byte)),
    )


def rounded(value: float | None) -> float | None:
    """``value`` with as many digits as anybody reads."""
    return None if value is None else round(value, 4)


def state_of(endpoint: Endpoint) -> str:
    """The one word that matters most about an endpoint, of `STATES`."""
    if endpoint.draining:
        return "draining"
    if not endpoint.reachable:
        return "unreachable"
    if endpoint.load is None:
        return "stale"
    return "asleep" if endpoint.load.asleep else "ready"


def row(endpoint: Endpoint, counts: InFlight, recent: Recent, *, now: float) -> Row:
    """What a table shows of one endpoint."""
    load = endpoint.load
    return Row(
        name=endpoint.name or endpoint.address,
        address=endpoint.address,
        state=state_of(endpoint),
        running=load.running if load else None,
        waiting=load.queued if load else None,
        kv_usage=rounded(load.kv_usage) if load else None,
        in_flight=counts.own,
        in_flight_tokens=counts.own_tokens,
        requests_per_second=round(recent.requests / recent.seconds, 2) if recent.seconds else 0.0,
        error_share=rounded(share(recent.errors, recent.ended)),
        hit_rate=rounded(share(recent.held, recent.blocks)),
        age=round(now - load.at, 1) if load else None,
    )


def added(histograms: Iterable[Sequence[int]], size: int) -> tuple[int, ...]:
    """Bucket counts of several histograms with ``size`` buckets as one."""
    total = [0] * size
    for counts in histograms:
        total = list(map(add, total, counts))
    return tuple(total)


def _mean(total: float, count: int) -> float | None:
    return total / count if count else None


def _rate(step: Sample) -> float | None:
    return step.requests / step.at if step.at > 0 else None


def _engine_hit_rate(step: Sample) -> float | None:
    if step.prompts != step.cached:
        return None  # some told one of the two only: the sums are of different requests
    return share(step.cached_tokens, step.prompt_tokens)


def _thin(samples: Sequence[Sample]) -> list[Sample]:
    """Samples at least `STEP_SECONDS` apart, the last one included, oldest first."""
    kept: list[Sample] = []
    for sample in reversed(samples):
        # A sample is taken a little late each time; half a step apart is not a step.
        if not kept or kept[-1].at - sample.at >= STEP_SECONDS - 0.5:
            kept.append(sample)
    return kept[::-1]
