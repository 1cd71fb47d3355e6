"""Runs what ``epp sim run`` asks for, with a progress bar, and shows it as tables."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import Progress, TimeElapsedColumn
from rich.table import Table

from epp.errors import ConfigError
from epp.sim.demand.traffic import Demand, demand_of
from epp.sim.fleet.run import run
from epp.sim.fleet.scenario import Scenario, read_scenario
from epp.sim.report.figures import Figures, Routing, Summary, summarize

WIDTH = 120  #: columns of a table, at least


def run_and_show(parsed: argparse.Namespace) -> int:
    """Simulate, print, and write what is asked for.

    Raises:
        ConfigError: the scenario or a policy is wrong.
    """
    scenario = read_scenario(parsed.scenario)
    if parsed.seed is not None:
        scenario = msgspec.structs.replace(scenario, seed=parsed.seed)
    if parsed.seeds is not None:
        if parsed.seeds < 1:
            raise ConfigError(f"--seeds {parsed.seeds}: at least one run is needed")
        scenario = msgspec.structs.replace(scenario, seeds=parsed.seeds)
    policies = parsed.policy or [scenario.policy]
    found = simulated(scenario, policies)
    console = Console(highlight=False, width=max(Console().width, WIDTH))
    for table in tables_of(found):
        console.print(table)
        console.print()
    if parsed.json:
        text = msgspec.json.format(msgspec.json.encode(found))
        Path(parsed.json).write_bytes(text)
    return 0


def simulated(scenario: Scenario, policies: Sequence[str]) -> list[Summary]:
    """Run every policy with every seed; each seed's traffic is the same for all policies."""
    found: list[Summary] = []
    seeds = range(scenario.seed, scenario.seed + scenario.seeds)
    with _progress() as progress:
        for seed in seeds:
            demand = demand_of(scenario.traffic, seed)
            found += [
                _one(scenario, policy, demand=demand, seed=seed, progress=progress)
                for policy in policies
            ]
    return found


def _one(
    scenario: Scenario, policy: str, *, demand: Demand, seed: int, progress: Progress
) -> Summary:
    task = progress.add_task(f"{policy}, seed {seed}", total=None)

    def tell(done: int, of: int) -> None:
        progress.update(task, completed=done, total=of)

    outcome = run(scenario, policy, demand=demand, seed=seed, tell=tell)
    progress.remove_task(task)
    return summarize(outcome, scenario.goals, scenario.warm_up_seconds)


def _progress() -> Progress:
    console = Console(stderr=True)
    return Progress(
        *Progress.get_default_columns(), TimeElapsedColumn(), console=console, transient=True
    )


def tables_of(found: Sequence[Summary]) -> tuple[Table, Table]:
    """Return what clients saw and how requests were spread; classes where there are several."""
    seen = _table(
        "requests", "TTFT p50", "p90", "p99", "TPOT p50", "E2E p90", "goodput", "shed", "failed"
    )
    spread = _table(
        "hit rate", "ideal", "one LRU", "regret", "imbalance", "herd", "flaps", "preempted"
    )
    for each in found:
        seen.add_row(each.policy, str(each.seed), "all", *_seen(each.all))
        spread.add_row(each.policy, str(each.seed), "all", *_spread(each.all, each.routing))
        for name, figures in each.classes.items() if len(each.classes) > 1 else ():
            seen.add_row("", "", name, *_seen(figures))
            spread.add_row("", "", name, *_spread(figures, None))
    return seen, spread


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("policy", "seed", "class"):
        table.add_column(name, no_wrap=True)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _seen(figures: Figures) -> list[str]:
    ttft, tpot, e2e = figures.ttft, figures.tpot, figures.e2e
    return [
        str(figures.requests),
        *([_seconds(each) for each in (ttft.p50, ttft.p90, ttft.p99)] if ttft else ["-"] * 3),
        _seconds(tpot.p50) if tpot else "-",
        _seconds(e2e.p90) if e2e else "-",
        f"{figures.goodput:.3f}",
        str(figures.shed),
        str(figures.failed),
    ]


def _spread(figures: Figures, routing: Routing | None) -> list[str]:
    shared = ["", "", ""]
    if routing is not None:
        shared = [f"{routing.imbalance:.2f}", str(routing.herd), f"{routing.flaps:.3f}"]
    return [
        f"{figures.hit_rate:.3f}",
        f"{figures.ideal_hit_rate:.3f}",
        f"{routing.reachable_hit_rate:.3f}" if routing else "",
        f"{figures.regret:.3f}",
        *shared,
        str(figures.preemptions),
    ]


def _seconds(value: float) -> str:
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.2f} s"
