"""Runs what ``epp sim run`` asks for, with a progress bar, and shows and writes what came of it."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.progress import Progress, TimeElapsedColumn

from epp.errors import ConfigError
from epp.process import garbage
from epp.sim.baselines.catalog import policy_of
from epp.sim.demand.traffic import Demand, demand_of
from epp.sim.fleet.run import run
from epp.sim.fleet.scenario import Scenario, read_scenario
from epp.sim.fleet.story import Outcome
from epp.sim.report.benchmark import report_of, yaml_of
from epp.sim.report.figures import Summary, summarize
from epp.sim.report.page import page_of
from epp.sim.report.seeds import Difference, compared, over_seeds
from epp.sim.report.tables import differences_of, means_of, tables_of
from epp.terminal.console import Console

WIDTH = 120  #: columns of a table, at least


class Run(msgspec.Struct, frozen=True):
    """One run with what is needed to write about it."""

    scenario: Scenario
    summary: Summary
    outcome: Outcome


def run_and_show(parsed: argparse.Namespace) -> int:
    """Simulate, print, and write what is asked for.

    Raises:
        ConfigError: a scenario or a policy is wrong.
    """
    first = _asked(parsed, parsed.scenario)
    cases = [(policy, first) for policy in parsed.policy or [first.policy]]
    if parsed.compare:
        if parsed.policy:
            raise ConfigError("--compare takes each scenario's own policy: leave --policy out")
        other = msgspec.structs.replace(
            _asked(parsed, parsed.compare), seed=first.seed, seeds=first.seeds
        )
        cases.append((other.policy, other))
    _check(parsed, [policy for policy, _ in cases])
    with garbage.seldom():
        runs = simulated(cases)
    if parsed.compare and len({policy for policy, _ in cases}) == 1:
        runs = _told_apart(runs, (parsed.scenario, parsed.compare))
    grouped = [runs[i :: len(cases)] for i in range(len(cases))]
    differences = _difference(grouped) if parsed.compare else []
    _print(runs, grouped, differences)
    _write(parsed, runs, differences)
    return 0


def _told_apart(runs: Sequence[Run], paths: Sequence[str]) -> list[Run]:
    """Return runs of one policy in two scenarios, each named by its scenario's file, too."""
    stems = [Path(path).stem for path in paths]
    names = stems if stems[0] != stems[1] else paths
    found = []
    for number, each in enumerate(runs):
        name = f"{each.summary.policy}, {names[number % len(names)]}"
        summary = msgspec.structs.replace(each.summary, policy=name)
        found.append(msgspec.structs.replace(each, summary=summary))
    return found


def simulated(cases: Sequence[tuple[str, Scenario]]) -> list[Run]:
    """Run every case with every seed of the first; by seed, then by case.

    Cases of one seed are asked the same, as far as their traffic says the same.
    """
    first = cases[0][1]
    found: list[Run] = []
    with _progress() as progress:
        for seed in range(first.seed, first.seed + first.seeds):
            demands: dict[bytes, Demand] = {}
            for policy, scenario in cases:
                key = msgspec.json.encode(scenario.traffic)
                if key not in demands:
                    demands[key] = demand_of(scenario.traffic, seed)
                case = msgspec.structs.replace(scenario, policy=policy, seed=seed)
                found.append(_one(case, demands[key], progress))
    return found


def _one(scenario: Scenario, demand: Demand, progress: Progress) -> Run:
    task = progress.add_task(f"{scenario.policy}, seed {scenario.seed}", total=None)

    def tell(done: int, of: int) -> None:
        progress.update(task, completed=done, total=of)

    outcome = run(scenario, demand=demand, tell=tell)
    progress.remove_task(task)
    summary = summarize(outcome, scenario.goals, scenario.warm_up_seconds)
    return Run(scenario, summary, outcome)


def _check(parsed: argparse.Namespace, policies: Sequence[str]) -> None:
    """Refuse before the first run what would fail after it.

    Raises:
        ConfigError: there is no such policy or folder.
    """
    for policy in policies:
        policy_of(policy)
    for name in ("json", "html"):
        path = Path(getattr(parsed, name))
        if not path.parent.is_dir():
            raise ConfigError(f"--{name} {path}: there is no folder {path.parent}")


def _asked(parsed: argparse.Namespace, path: str) -> Scenario:
    """The scenario in a file, with what flags say instead."""
    scenario = read_scenario(path)
    told = {name: getattr(parsed, name) for name in ("seed", "seeds")}
    told = {name: value for name, value in told.items() if value is not None}
    return msgspec.structs.replace(scenario, **told)


def _difference(grouped: Sequence[Sequence[Run]]) -> list[Difference]:
    one, other = ([each.summary for each in group] for group in grouped)
    return compared(one, other)


def _progress() -> Progress:
    console = Console(stderr=True)
    return Progress(
        *Progress.get_default_columns(), TimeElapsedColumn(), console=console, transient=True
    )


def _print(
    runs: Sequence[Run], grouped: Sequence[Sequence[Run]], differences: Sequence[Difference]
) -> None:
    console = Console(highlight=False, width=max(Console().width, WIDTH))
    tables = list(tables_of([each.summary for each in runs]))
    if len(grouped[0]) > 1:
        named = [
            (group[0].summary.policy, over_seeds([each.summary for each in group]))
            for group in grouped
        ]
        tables.append(means_of(named))
    if differences:
        tables.append(differences_of(differences))
    for table in tables:
        console.print(table)
        console.print()


def _write(
    parsed: argparse.Namespace, runs: Sequence[Run], differences: Sequence[Difference]
) -> None:
    if parsed.json:
        told = {"runs": [each.summary for each in runs], "differences": differences}
        Path(parsed.json).write_bytes(msgspec.json.format(msgspec.json.encode(told)))
    if parsed.html:
        pairs = [(each.summary, each.outcome) for each in runs]
        page = page_of(pairs, differences)
        Path(parsed.html).write_text(page, encoding="utf-8")
    written: Counter[str] = Counter()
    for each in runs if parsed.benchmark_report else ():
        folder = Path(parsed.benchmark_report)
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{Path(each.scenario.policy).stem}-seed-{each.summary.seed}"
        written[name] += 1
        if written[name] > 1:  # of another scenario
            name += f"-{written[name]}"
        text = yaml_of(report_of(each.scenario, each.summary, each.outcome))
        (folder / f"{name}.yaml").write_text(text, encoding="utf-8")
