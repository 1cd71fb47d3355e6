"""What is asked in a run: conversations with their times, made from a trace or a model."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import msgspec
import numpy as np

from epp.sim.fleet.scenario import Burst, Traffic
from epp.traffic.files import Reading, read_trace
from epp.traffic.model.files import preset, read_model
from epp.traffic.model.synth import Wanted, synthesize
from epp.traffic.replay.plan import Pace, Talk, plan
from epp.traffic.study.arrivals import detick
from epp.traffic.study.reuse import Reuse, reuse
from epp.traffic.trace import Trace


class Demand(msgspec.Struct, frozen=True):
    """Conversations in the order of their beginning."""

    talks: Sequence[Talk]
    block_tokens: int  #: of the trace's blocks
    trace: Trace

    def reachable(self, tokens: int) -> float:
        """Return the share of prompt tokens that an LRU cache of ``tokens`` finds."""
        return _reuse_of(_Same(self.trace)).hit_rate(tokens)


def demand_of(traffic: Traffic, seed: int) -> Demand:
    """Return the requests of a run.

    The seed makes traffic of a model; of a trace, it spreads requests within the ticks of its clock.

    Raises:
        TraceError: there is no such trace or model.
    """
    if traffic.files:
        trace = traced(traffic)
    else:
        model = preset(traffic.preset) if traffic.preset else read_model(traffic.model)
        trace = synthesize(model, Wanted(seconds=traffic.seconds, seed=seed, finish=True))
    return demand_from(trace, traffic, seed)


def demand_from(trace: Trace, traffic: Traffic, seed: int) -> Demand:
    """Return the conversations of ``trace``, at the pace that ``traffic`` asks for."""
    records = trace.records[: traffic.requests or None]
    times = np.asarray(detick([record.at for record in records], seed)).tolist()
    records = tuple(
        msgspec.structs.replace(record, at=at) for record, at in zip(records, times, strict=True)
    )
    cut = Trace(records, trace.block_tokens)
    pace = Pace(speed=traffic.rate, think_speed=traffic.think_rate, smooth=False)
    talks = [
        msgspec.structs.replace(talk, begins_at=hurried(talk.begins_at, traffic.bursts))
        for talk in plan(cut, pace)
    ]
    return Demand(sorted(talks, key=lambda talk: talk.begins_at), trace.block_tokens, cut)


def hurried(at: float, bursts: Sequence[Burst]) -> float:
    """Return when it happens that would happen at ``at`` without bursts.

    In a burst traffic goes by ``times`` as fast; what comes after it comes earlier by that.
    """
    now = passed = 0.0  # of the run, of the traffic
    for burst in sorted(bursts, key=lambda each: each.at):
        until = passed + max(burst.at - now, 0.0)
        if at <= until:
            break
        now, passed = max(now, burst.at), until
        if at <= passed + burst.seconds * burst.times:
            return now + (at - passed) / burst.times
        now, passed = now + burst.seconds, passed + burst.seconds * burst.times
    return now + at - passed


def traced(traffic: Traffic) -> Trace:
    """Return the trace in the files that ``traffic`` names; those read last are kept.

    Raises:
        TraceError: they cannot be read.
    """
    return _read(traffic.files, traffic.format)


@lru_cache(4)
def _read(files: tuple[str, ...], format: str) -> Trace:
    return read_trace(files, Reading(format=format))


class _Same:
    """A trace, by identity: to compare two is to read them."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace

    def __hash__(self) -> int:
        return id(self.trace.records)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.trace.records is self.trace.records


@lru_cache(4)
def _reuse_of(same: _Same) -> Reuse:
    return reuse(same.trace)
