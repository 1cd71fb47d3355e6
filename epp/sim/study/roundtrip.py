"""``make roundtrip-report TRACES=FILES``: what recording, fitting and making change of a trace.

Each trace is played into the recorder, a model is fitted to the recording, and traces are made of
the model. Then caches of seven sizes are asked what they find in the trace and in what was made,
and one fleet is simulated with the recording and with what was made: both tell think times, so in
both a later turn waits for the answer before.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import mean

import msgspec

from epp.recording.keys import Names
from epp.recording.notes import Fact, Notes
from epp.recording.record import record_of
from epp.sim.demand.traffic import demand_from
from epp.sim.fleet.run import run
from epp.sim.fleet.scenario import Pods, Scenario, Traffic
from epp.traffic.arguments import add_input, read
from epp.traffic.figures import percentile
from epp.traffic.model.fit import fit
from epp.traffic.model.synth import like
from epp.traffic.sessions import conversations
from epp.traffic.study.compare import compare
from epp.traffic.study.distance import Interval, percentile_interval, sample_for
from epp.traffic.trace import Trace, full_blocks, trace_of

PROFILE = "qwen3-32b-h200-tp2"
POLICY = "cache-aware"
SERVED_SECONDS = 0.5
"""Of an answer, where a trace does not tell; less if the next turn comes sooner."""
KEY = b"round trip" * 4
HEAD = (
    "| trace | requests | seeds | largest difference of hit rates | TTFT p50 | made | p99 (95 % interval) "
    "| made (over seeds) | p99 off by (worst seed) | a p99 within a tenth needs |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n"
)


class Waits(msgspec.Struct, frozen=True):
    """Times to the first token of one run, in seconds."""

    p50: float
    p99: float


class Trip(msgspec.Struct, frozen=True):
    """One trace there and back; an entry for each seed."""

    name: str
    requests: int
    hits: tuple[float, ...]  #: largest difference of the hit rates, 0.0 to 1.0
    first: tuple[Waits, ...]  #: of the trace
    made: tuple[Waits, ...]
    chance: tuple[float, float]  #: where the trace's p99 may lie with 95 %, by one run's requests
    needed: int | None  #: requests to know it within a tenth; None: too few to tell

    @property
    def p99_error(self) -> float:
        """How far the p99 of what was made is from the trace's, as a share of it; means over seeds."""
        return _off(mean(each.p99 for each in self.first), mean(each.p99 for each in self.made))

    @property
    def worst_p99_error(self) -> float:
        """The same, of the seed that is farthest off."""
        return max(_off(a.p99, b.p99) for a, b in zip(self.first, self.made, strict=True))


def _off(first: float, made: float) -> float:
    return abs(made / first - 1) if first else 0.0


def recorded(trace: Trace, least: int = 1) -> Trace:
    """Record each request as if it had been served; the ids of its blocks stand for hashes."""
    notes = Notes(Names(KEY, 1e9), least, frozenset(each.business for each in trace.records))
    served = _served(trace)
    facts = (
        Fact(
            at=each.at, ended_at=each.at + served.get(id(each), SERVED_SECONDS),
            input_tokens=each.input_tokens, output_tokens=each.output_tokens,
            chain=full_blocks(each, trace.block_tokens), block_tokens=trace.block_tokens,
            session=each.session, tenant=each.tenant, business=each.business, ttft=each.ttft,
        )
        for each in trace.records
    )  # fmt: skip
    return trace_of([record_of(notes.line(fact)) for fact in facts], trace.block_tokens)


def _served(trace: Trace) -> dict[int, float]:
    """Return how long answers take that end before the conversation goes on, by record's identity."""
    told = {id(each): each.duration for each in trace.records if each.duration is not None}
    for talk in conversations(trace):
        for before, after in pairwise(talk):
            half = max(0.0, (after.record.at - before.record.at) / 2)
            told.setdefault(id(before.record), min(SERVED_SECONDS, half))
    return told


def trip(trace: Trace, name: str, scenario: Scenario, seeds: Sequence[int]) -> Trip:
    """Take one trace there and back."""
    tape = recorded(trace)
    model = fit(tape)
    made = [like(model, tape.seconds, seed) for seed in seeds]
    first = [simulated(tape, scenario, seed) for seed in seeds]
    second = [simulated(each, scenario, seed) for each, seed in zip(made, seeds, strict=True)]
    p99 = percentile_interval(first[0], 99) if first[0] else Interval(0.0, 0.0, 0.0)
    return Trip(
        name, len(trace.records), tuple(compare(trace, each).worst_hit for each in made),
        _waits(first), _waits(second), (p99.low, p99.high), sample_for(first[0], 99),
    )  # fmt: skip


def simulated(trace: Trace, scenario: Scenario, seed: int) -> list[float]:
    """Return the times to the first token in a simulated fleet, in seconds."""
    demand = demand_from(trace, scenario.traffic, seed)
    stories = run(scenario, POLICY, demand=demand, seed=seed).stories
    return [story.ttft for story in stories if story.ttft is not None]


def _waits(runs: Sequence[Sequence[float]]) -> tuple[Waits, ...]:
    return tuple(Waits(percentile(run, 50) or 0.0, percentile(run, 99) or 0.0) for run in runs)


def page_of(trips: Iterable[Trip]) -> str:
    """Return the table, in Markdown."""
    return HEAD + "".join(_row(each) for each in trips)


def _row(trip: Trip) -> str:
    far = [each.p99 for each in trip.made]
    cells = (
        trip.name, f"{trip.requests:,}", str(len(trip.hits)),
        f"{max(trip.hits) * 100:.1f} points",
        f"{_ms(mean(each.p50 for each in trip.first))} ms",
        f"{_ms(mean(each.p50 for each in trip.made))} ms",
        (f"{_ms(mean(each.p99 for each in trip.first))} ms "
        f"({_ms(trip.chance[0])} to {_ms(trip.chance[1])})"),
        f"{_ms(mean(far))} ms ({_ms(min(far))} to {_ms(max(far))})",
        f"{trip.p99_error:.0%} ({trip.worst_p99_error:.0%})",
        "more than it has" if trip.needed is None else f"{trip.needed:,} requests",
    )  # fmt: skip
    return f"| {' | '.join(cells)} |\n"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:,.0f}"


def main() -> int:
    """Run the report; return the exit status."""
    parsed = _parser().parse_args()
    seeds = tuple(range(1, parsed.seeds + 1))
    files, trips = parsed.files, []
    for path in files:
        parsed.files = [path]
        trips.append(trip(read(parsed), Path(path).name, _scenario(parsed.pods), seeds))
    sys.stdout.write(page_of(trips))
    return 0


def _scenario(pods: int) -> Scenario:
    return Scenario(fleet=(Pods(count=pods, profile=PROFILE),), traffic=Traffic(files=("-",)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="epp.sim.study.roundtrip", description=__doc__)
    add_input(parser)
    parser.add_argument("--pods", type=int, default=8, help="of the simulated fleet")
    parser.add_argument("--seeds", type=int, default=3, help="traces made, and runs of each")
    return parser


if __name__ == "__main__":
    sys.exit(main())
