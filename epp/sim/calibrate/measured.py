"""A trace that tells how its answers went, as requests to simulate."""

from __future__ import annotations

import msgspec

from epp.recording.record import Record
from epp.sim.calibrate.quality import LEAST_REQUESTS
from epp.sim.demand.traffic import Demand
from epp.traffic.replay.plan import Step, Talk
from epp.traffic.trace import Trace, TraceError

BLOCK_TOKENS = 16  #: of prompts of which only the cached tokens are known


def demand_measured(trace: Trace) -> Demand:
    """Return the requests of a trace at their own moments.

    Where it names no blocks but tells cached tokens, these are the beginning of one common prompt:
    hits are as they were, after the first one that is as long.

    Raises:
        TraceError: too few of them tell how long their answers took.
    """
    told = [each for each in trace.records if each.ttft and each.duration and not each.outcome]
    if len(told) < LEAST_REQUESTS:
        raise TraceError(
            f"{len(told)} of {len(trace.records)} requests tell TTFT and duration (ttft_ms and "
            f"e2e_ms of a trace; ttft_s and e2e_s of a log); {LEAST_REQUESTS} are needed"
        )
    if not any(each.runs for each in trace.records):
        trace = _sharing(trace)
    talks = [Talk(each.at, (Step(each, str(i)),)) for i, each in enumerate(trace.records)]
    return Demand(talks, trace.block_tokens, trace)


def _sharing(trace: Trace) -> Trace:
    """Give the blocks of one common prompt to requests, as many as were cached."""
    if not any(each.cached_tokens for each in trace.records):
        return trace
    return Trace(tuple(_begun(each) for each in trace.records), BLOCK_TOKENS, trace.bad)


def _begun(record: Record) -> Record:
    cached = min(record.cached_tokens or 0, record.input_tokens) // BLOCK_TOKENS
    return msgspec.structs.replace(record, runs=((0, cached),)) if cached else record
