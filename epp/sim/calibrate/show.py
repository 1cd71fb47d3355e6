"""Runs ``epp sim calibrate`` and ``epp sim kv``, and prints what was found."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.progress import Progress

from epp.errors import ConfigError
from epp.sim.calibrate.capacity import Card, ModelSize, kv_tokens
from epp.sim.calibrate.certainty import RUNS, Interval, intervals
from epp.sim.calibrate.fit import Fitted, corrected, fit
from epp.sim.calibrate.measured import demand_measured
from epp.sim.calibrate.quality import Errors, Quality, quality
from epp.sim.calibrate.verdict import MOST, doubts_of, doubts_of_fit
from epp.sim.demand.traffic import Demand
from epp.sim.fleet.scenario import read_scenario
from epp.terminal.console import Console
from epp.terminal.output import tell
from epp.traffic.arguments import reading_of
from epp.traffic.files import read_trace, told


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What ``--json`` writes."""

    good: bool  #: nothing speaks against it
    warnings: Sequence[str]
    numbers: Mapping[str, float]
    intervals: Mapping[str, Interval]  #: of 95 %
    before: Quality  #: with the profile as it is
    after: Quality
    check: Quality | None = None  #: of ``--check``
    fleet: Mapping[str, Any]  #: for each entry of a scenario's fleet


def calibrate(parsed: argparse.Namespace) -> int:
    """Fit; print numbers for ``fleet``, how close they come, and what speaks against them.

    Returns:
        1 if anything does.

    Raises:
        ConfigError: the scenario or a trace cannot be used.
    """
    _check_out(parsed.json)
    scenario = read_scenario(parsed.scenario)
    demand = _demand(parsed, parsed.measured)
    other = _demand(parsed, parsed.check) if parsed.check else None
    asked = read_scenario(parsed.check_scenario) if parsed.check_scenario else scenario
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("simulating", total=parsed.runs + RUNS)
        found = fit(scenario, demand, calls=parsed.runs, tell=lambda: progress.advance(task))
        known = intervals(
            scenario, demand, found.numbers, found.after.loss, lambda: progress.advance(task)
        )
    check = quality(corrected(asked, found.numbers), other) if other else None
    doubts = doubts_of_fit(found.after, known)
    doubts += [f"{parsed.check}: {each}" for each in doubts_of(check)] if check else []
    tell("\n".join(_said(found, known)))
    if check:
        tell("\n".join(_lines(parsed.check, check)))
    tell("\n".join(f"# WARNING: {each}" for each in doubts) or f"# good: within {MOST:.0%}")
    if parsed.json:
        _write(parsed.json, found, known, check, doubts)
    return 1 if doubts else 0


def kv(parsed: argparse.Namespace) -> int:
    """Print how many tokens a KV cache holds."""
    model = ModelSize(
        weights_gib=parsed.weights_gib,
        layers=parsed.layers,
        kv_heads=parsed.kv_heads,
        head_size=parsed.head_size,
        bytes_each=parsed.bytes,
    )
    card = Card(gib=parsed.gpu_gib, utilization=parsed.utilization, count=parsed.gpus)
    tell(str(kv_tokens(model, card)))
    return 0


def _demand(parsed: argparse.Namespace, path: str) -> Demand:
    try:
        trace = read_trace([path], reading_of(parsed))
        if trace.bad:
            sys.stderr.write(f"{told(trace.bad)}\n")
        return demand_measured(trace)
    except ConfigError as error:
        named = path in str(error)
        raise error if named else ConfigError(f"{path}: {error}") from error


def _check_out(path: str) -> None:
    if path and not Path(path).parent.is_dir():
        raise ConfigError(f"--json {path}: there is no folder {Path(path).parent}")


def _fleet(found: Fitted) -> dict[str, Any]:
    each = found.numbers
    return {
        "correction": {
            "prefill": each.prefill,
            "decode": each.decode,
            "step_seconds": each.step,
            "sequence_seconds": each.sequence,
        },
        "request_seconds": each.request,
    }


def _write(
    path: str, found: Fitted, known: Mapping[str, Interval], check: Quality | None,
    doubts: Sequence[str],
) -> None:  # fmt: skip
    all_of_it = Told(
        good=not doubts, warnings=doubts, numbers=found.numbers._asdict(), intervals=known,
        before=found.before, after=found.after, check=check, fleet=_fleet(found),
    )  # fmt: skip
    Path(path).write_bytes(msgspec.json.format(msgspec.json.encode(all_of_it), indent=2) + b"\n")


def _said(found: Fitted, known: Mapping[str, Interval]) -> Iterator[str]:
    each = found.numbers
    yield "# for each entry of `fleet`:"
    yield (
        f"correction: {{prefill: {each.prefill:.4g}, decode: {each.decode:.4g}, "
        f"step_seconds: {each.step:.3g}, sequence_seconds: {each.sequence:.3g}}}"
    )
    yield f"request_seconds: {each.request:.3g}"
    ranges = (f"{name} {each.low:.3g} to {each.high:.3g}" for name, each in known.items())
    yield f"# 95 %: {', '.join(ranges)}"
    yield from _lines("before", found.before)
    yield from _lines("after", found.after)


def _lines(name: str, of: Quality) -> Iterator[str]:
    yield f"# {name}: {_line(of.all)}; makespan {of.makespan:+.1%}"
    for each, errors in of.classes.items():
        yield f"#   class {each}: {_line(errors)}"


def _line(each: Errors) -> str:
    return (
        f"{each.requests} requests: TTFT p50 {each.ttft_p50:+.1%}, p90 {each.ttft_p90:+.1%}, "
        f"MAPE {each.ttft_mape:.1%}; after it p50 {each.rest_p50:+.1%}; "
        f"E2E p50 {each.e2e_p50:+.1%}, p90 {each.e2e_p90:+.1%}, MAPE {each.e2e_mape:.1%}"
    )
