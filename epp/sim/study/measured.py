"""Published measurements of routing policies: the workload as demand, and what was measured.

Prompts share a beginning within their group. Rates rise from stage to stage, and each stage begins
when the one before has drained; that costs nothing in virtual time, so stages are `APART_SECONDS`
apart.

**Source:** the files of llm-d-kv-cache, ``benchmarking/73-capacity`` and ``37-capacity``; and
inference-perf, with which they were made: prompts are shuffled once, and every stage asks them in
that order from the first one on.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from epp.errors import ConfigError
from epp.recording.record import Record
from epp.sim.demand.traffic import Demand
from epp.sim.fleet.story import Story
from epp.traffic.replay.plan import Step, Talk
from epp.traffic.trace import Trace

APART_SECONDS = 1000.0
BLOCKS = (256, 200, 128, 100, 64, 50, 32, 16, 10, 8, 4, 2, 1)  #: sizes that a prompt may have
_SPACE = 1 << 20  #: ids of blocks that one group or prompt may use


AtLeastZero = Annotated[float, Meta(ge=0)]
Positive = Annotated[float, Meta(gt=0)]
Count = Annotated[int, Meta(gt=0)]


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """The workload of a benchmark, and what answers it."""

    pods: Count
    model: str
    gpu: str
    tp: Count = 1  #: GPUs of an engine
    kv_tokens_per_pod: Count | None = None  #: None: as the profile says
    arrival: Literal["poisson", "constant"] = "poisson"
    groups: Count
    prompts_per_group: Count
    system_tokens: Count
    question_tokens: Count
    output_tokens: Count
    warmup: tuple[Positive, AtLeastZero] = (1.0, 0.0)  #: requests a second, and seconds
    stages_rate_duration: tuple[tuple[Positive, Positive], ...]

    @property
    def block_tokens(self) -> int:
        """The largest block of `BLOCKS` that divides both parts of a prompt."""
        parts = (self.system_tokens, self.question_tokens)
        return next(size for size in BLOCKS if not any(part % size for part in parts))


class Point(msgspec.Struct, frozen=True):
    """What was measured, or simulated, in one stage."""

    qps: float
    out_tok_s: AtLeastZero  #: of answers, from the first request to the last answer
    ttft_p90_s: AtLeastZero
    ttft_mean_s: AtLeastZero
    req_s: AtLeastZero = 0.0  #: with which requests were sent in fact; 0: not told


class Benchmark(msgspec.Struct, frozen=True):
    """A workload, and a curve of each policy; some stages of it may lack."""

    setup: Setup
    per_qps: Annotated[dict[str, tuple[Point, ...]], Meta(min_length=1)]

    def __post_init__(self) -> None:
        """Refuse curves that are not of the workload's stages, each once.

        Raises:
            ValueError: which, and why.
        """
        stages = [rate for rate, _ in self.setup.stages_rate_duration]
        _check_once("setup.stages_rate_duration", stages)
        for policy, curve in self.per_qps.items():
            _check_curve(f"per_qps.{policy}", curve, stages)


def _check_curve(where: str, curve: Sequence[Point], stages: Sequence[float]) -> None:
    _check_once(where, [point.qps for point in curve])
    for point in curve:
        if point.qps not in stages:
            known = ", ".join(f"{rate:g}" for rate in stages)
            raise ValueError(
                f"`{where}` has {point.qps:g} requests a second, which is none of "
                f"`setup.stages_rate_duration`: {known}"
            )
        if not point.out_tok_s:
            raise ValueError(f"`{where}` has `out_tok_s` 0 at {point.qps:g} requests a second")


def _check_once(where: str, rates: Sequence[float]) -> None:
    if not rates:
        raise ValueError(f"`{where}` has no stage")
    rate, times = Counter(rates).most_common(1)[0]
    if times > 1:
        raise ValueError(f"`{where}` has {rate:g} requests a second twice")


def read_benchmarks(paths: Sequence[Path]) -> dict[str, Benchmark]:
    """Return the benchmarks of JSON files, by name: all their members that have a setup and curves.

    Raises:
        ConfigError: one cannot be read or has none; the message says where.
    """
    found: dict[str, Benchmark] = {}
    for path in paths:
        members = _members(path)
        for name, each in members.items():
            if name in found:
                raise ConfigError(f"{path}: {name}: an earlier file has it, too")
            try:
                found[name] = msgspec.convert(each, Benchmark, strict=False)
            except msgspec.ValidationError as error:
                raise ConfigError(f"{path}: {name}: {error}") from error
    return found


def _members(path: Path) -> dict[str, Any]:
    try:
        members = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError, msgspec.ValidationError) as error:
        raise ConfigError(f"{path}: {error}") from error
    found = {
        name: each
        for name, each in members.items()
        if isinstance(each, Mapping) and ("setup" in each or "per_qps" in each)
    }
    if not found:
        raise ConfigError(f"{path}: no member has `setup` and `per_qps`")
    return found


def demand_of(setup: Setup, curve: Sequence[Point], seed: int) -> Demand:
    """Return all stages as one demand, as fast as requests of ``curve`` were sent.

    The seed draws moments and the order of prompts.
    """
    draw = random.Random(seed)
    order = list(range(setup.groups * setup.prompts_per_group))
    draw.shuffle(order)
    records: list[Record] = []
    stages = [(setup.warmup, setup.warmup[0])]
    told = {point.qps: point.req_s for point in curve}
    stages += [(stage, told.get(stage[0]) or stage[0]) for stage in setup.stages_rate_duration]
    for number, ((rate, seconds), sent) in enumerate(stages):
        moments = _moments(setup.arrival, round(rate * seconds), sent, draw)
        records += [
            _record(setup, order[i % len(order)], number * APART_SECONDS + moment)
            for i, moment in enumerate(moments)
        ]
    talks = [Talk(each.at, (Step(each, str(i)),)) for i, each in enumerate(records)]
    return Demand(talks, setup.block_tokens, Trace(tuple(records), setup.block_tokens))


def points(setup: Setup, stories: Sequence[Story]) -> dict[float, Point]:
    """Return by rate what a client saw of the answers in each stage; none of the one that warms up."""
    found = {}
    for number, (rate, _) in enumerate(setup.stages_rate_duration, start=1):
        begins = number * APART_SECONDS
        inside = [
            each for each in stories
            if begins <= each.at < begins + APART_SECONDS and each.ended_at is not None
            and each.ttft is not None and each.outcome == "ok"
        ]  # fmt: skip
        waits = sorted(each.ttft or 0.0 for each in inside)
        first = min((each.at for each in inside), default=begins)
        ends = max((each.ended_at or 0.0 for each in inside), default=first + 1.0)
        tokens = sum(each.output_tokens for each in inside)
        p90 = waits[int(0.9 * (len(waits) - 1))] if waits else 0.0
        mean = sum(waits) / max(len(waits), 1)
        found[rate] = Point(rate, tokens / max(ends - first, 1e-9), p90, mean)
    return found


def _moments(arrival: str, count: int, rate: float, draw: random.Random) -> list[float]:
    """Return when requests come: the last of them after ``count / rate`` seconds."""
    if arrival != "poisson":
        return [i / rate for i in range(count)]
    seconds = count / rate
    return sorted(draw.random() * seconds for _ in range(count))


def _record(setup: Setup, prompt: int, at: float) -> Record:
    """Return a request for one prompt: blocks of its group, then its own."""
    shared, own = (
        part // setup.block_tokens for part in (setup.system_tokens, setup.question_tokens)
    )
    group = prompt // setup.prompts_per_group
    return Record(
        at=at,
        input_tokens=setup.system_tokens + setup.question_tokens,
        output_tokens=setup.output_tokens,
        runs=((group * _SPACE, shared), ((setup.groups + prompt) * _SPACE, own)),
    )
