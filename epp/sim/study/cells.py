"""What a policy is judged on: one fleet, one traffic and one set of pickers for each cell."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from epp.sim.demand.traffic import Demand, demand_from, demand_of, traced
from epp.sim.fleet.scenario import Events, Pickers, Pods, Rollout, Scenario, Traffic
from epp.traffic.trace import Trace

PROFILE = "qwen3-32b-h200-tp2"
AMPLE, TIGHT = 767_000, 250_000  #: tokens that an engine's KV cache holds
LONGER = 4  #: times as many requests, for caches that are warm in most of a run
#: What `Traces` looks for.
CONVERSATION, SYNTHETIC = "conversation_trace.jsonl", "synthetic_trace.jsonl"
AGENTS = "weka_fleet_1h_96k.mooncake.jsonl.gz"
AZURE = "AzureLLMInferenceTrace_conv.csv"
NEEDED = (CONVERSATION, SYNTHETIC, AGENTS, AZURE)


class Cell(msgspec.Struct, frozen=True):
    """One row of the report."""

    name: str
    scenario: Scenario
    exact: bool = False  #: engines tell what they hold


class Traces(msgspec.Struct, frozen=True):
    """Where traces lie. A cell whose trace is not there is left out."""

    folder: Path

    def find(self, name: str) -> str:
        """Return the path of a trace; "" if it is not there."""
        return str(next(iter(sorted(self.folder.rglob(name))), ""))


def cells(traces: Traces, requests: int) -> list[Cell]:
    """Return the cells whose traffic is there."""
    conversation = traces.find(CONVERSATION)
    every = [
        *_traffics(traces, requests),
        *_fleets(conversation, requests),
        *_replicas(conversation, requests),
        *_events(conversation, requests),
    ]
    return [each for each in every if each.scenario.traffic.files != ("",)]


def demand_for(cell: Cell, seed: int) -> Demand:
    """Return a cell's traffic: of a trace, requests of its second half, others for each seed.

    The prices of the policy were chosen on the first half of one trace, and on other seeds.
    """
    traffic = cell.scenario.traffic
    if not traffic.files:
        return demand_of(traffic, seed)
    trace = traced(traffic)
    half = len(trace.records) // 2
    more = max(len(trace.records) - half - traffic.requests, 0)  # that a part may begin later
    first = half + (seed - 1) * traffic.requests % (more + 1)
    records = trace.records[first : first + traffic.requests]
    begins = records[0].at
    moved = tuple(msgspec.structs.replace(each, at=each.at - begins) for each in records)
    return demand_from(Trace(moved, trace.block_tokens), traffic, seed)


def _replicas(trace: str, requests: int) -> list[Cell]:
    longer = _trace(trace, LONGER * requests)
    eight = Pickers(replicas=8, scrape_seconds=0.5)
    made = [_cell("conversation x1, longer", longer, pickers=eight)]
    for replicas in (1, 8, 32):
        for scrape in (0.05, 0.5, 5.0):
            if scrape == 0.5 or replicas == 8:
                pickers = Pickers(replicas=replicas, scrape_seconds=scrape)
                name = f"conversation x1, {replicas} pickers, scrape {scrape:g} s"
                made.append(_cell(name, _trace(trace, requests), pickers=pickers))
    return made


def _traffics(traces: Traces, requests: int) -> Sequence[Cell]:
    eight = Pickers(replicas=8, scrape_seconds=0.5)
    return (
        _cell("conversation x2", _trace(traces.find(CONVERSATION), requests, 2.0), pickers=eight),
        _cell("synthetic x1", _trace(traces.find(SYNTHETIC), requests), pickers=eight),
        _cell("agents x2", _trace(traces.find(AGENTS), requests, 2.0), pickers=eight),
        _cell("Azure conversation x4", _trace(traces.find(AZURE), requests, 4.0), pickers=eight),
        _cell("shared prefixes, made", _made("b2b", requests), pickers=eight),
        _cell("agents, made", _made("coding-agent", requests), pickers=eight),
        _cell("tenants, made x6", _made("api-batch", requests, 6.0), pickers=eight),
    )


def _fleets(trace: str, requests: int) -> Sequence[Cell]:
    eight, traffic = Pickers(replicas=8, scrape_seconds=0.5), _trace(trace, requests)
    two = tuple(_pods(4, speed=speed) for speed in (1.3, 0.6))
    return (
        _cell("two speeds", traffic, pickers=eight, fleet=two),
        _cell("tight cache", traffic, pickers=eight, fleet=(_pods(8, kv_tokens=TIGHT),)),
        _cell("rollout", traffic, pickers=eight, changes=(Rollout(at=60.0),)),
        _cell("lean feedback", traffic, pickers=msgspec.structs.replace(eight, feedback="lean")),
    )


def _events(trace: str, requests: int) -> list[Cell]:
    made = []
    for loss in (0.0, 0.3, 1.0):
        pickers = Pickers(replicas=8, scrape_seconds=0.5, events=Events(loss=loss))
        name = f"KV events, {loss:.0%} lost"
        made.append(_cell(name, _trace(trace, requests), pickers=pickers, exact=True))
    return made


def _cell(name: str, traffic: Traffic, *, exact: bool = False, **facts: object) -> Cell:
    known = {"fleet": (_pods(8),), **facts}
    return Cell(name, Scenario(traffic=traffic, **known), exact)  # type: ignore[arg-type]


def _pods(count: int, *, speed: float = 1.0, kv_tokens: int = AMPLE) -> Pods:
    return Pods(count=count, profile=PROFILE, speed=speed, kv_tokens=kv_tokens, start_seconds=20.0)


def _trace(path: str, requests: int, rate: float = 1.0) -> Traffic:
    return Traffic(files=(path,), requests=requests, rate=rate, think_rate=rate)


def _made(preset: str, requests: int, rate: float = 1.0) -> Traffic:
    return Traffic(preset=preset, seconds=600.0, requests=requests, rate=rate)
