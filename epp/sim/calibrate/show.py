"""Runs ``epp sim calibrate`` and ``epp sim kv``, and prints what was found."""

from __future__ import annotations

import argparse

from rich.progress import Progress

from epp.sim.calibrate.capacity import Card, ModelSize, kv_tokens
from epp.sim.calibrate.fit import Fitted, Quality, corrected, demand_measured, fit, quality
from epp.sim.fleet.scenario import read_scenario
from epp.terminal.console import Console
from epp.terminal.output import tell
from epp.traffic.files import read_trace


def calibrate(parsed: argparse.Namespace) -> int:
    """Fit, and print numbers for ``fleet`` and how close they come.

    Raises:
        ConfigError: the scenario or a trace cannot be used.
    """
    scenario = read_scenario(parsed.scenario)
    demand = demand_measured(read_trace([parsed.measured]))
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("simulating", total=parsed.runs)
        found = fit(
            scenario,
            demand,
            calls=parsed.runs,
            tell=lambda done, of: progress.update(task, completed=done, total=max(done, of)),
        )
    tell(_said(found))
    if parsed.check:
        other = demand_measured(read_trace([parsed.check]))
        asked = read_scenario(parsed.check_scenario) if parsed.check_scenario else scenario
        tell(_line(f"{parsed.check}", quality(corrected(asked, found.numbers), other)))
    return 0


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


def _said(found: Fitted) -> str:
    each = found.numbers
    return (
        "# for each entry of `fleet`:\n"
        f"correction: {{prefill: {each.prefill:.4g}, decode: {each.decode:.4g}, "
        f"step_seconds: {each.step:.3g}, sequence_seconds: {each.sequence:.3g}}}\n"
        f"request_seconds: {each.request:.3g}\n"
        f"{_line('before', found.before)}\n{_line('after', found.after)}"
    )


def _line(name: str, each: Quality) -> str:
    return (
        f"# {name}: TTFT p50 {each.ttft_p50:+.1%}, p90 {each.ttft_p90:+.1%}; after it p50 "
        f"{each.rest_p50:+.1%}; E2E p50 {each.e2e_p50:+.1%}, p90 {each.e2e_p90:+.1%}; "
        f"makespan {each.makespan:+.1%}"
    )
