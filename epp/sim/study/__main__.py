"""``make policy-report TRACES=DIR``: every policy in every cell; a page in Markdown."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from rich.progress import track

from epp.sim.fleet.run import run
from epp.sim.report.figures import summarize
from epp.sim.study.cells import Cell, Traces, cells, demand_for
from epp.sim.study.page import DEFAULT, OURS, Result, page_of

RIVALS = (DEFAULT, "llm-d-sticky", "lmetric", "greedy", "session-hash")
ONE_INDEX = frozenset({"session-hash"})  #: policies that look nothing up


def main() -> int:
    """Run the report; return the exit status."""
    parsed = _parser().parse_args()
    wanted = [
        cell for cell in cells(Traces(Path(parsed.traces)), parsed.requests)
        if parsed.only in cell.name
    ]  # fmt: skip
    if not wanted:
        sys.stderr.write(f"no cell: {parsed.traces} holds none of the traces\n")
        return 2
    jobs = [
        (cell, policy, seed)
        for cell in wanted
        for policy in (OURS, *RIVALS)
        for seed in range(1, parsed.seeds + 1)
    ]
    each, results = len(jobs) // len(wanted), []
    with ProcessPoolExecutor(parsed.processes) as pool:
        found = pool.map(_simulated, jobs)
        for result in track(found, "simulating", total=len(jobs), disable=parsed.quiet):
            results.append(result)
            if len(results) % each == 0:  # what is there stays, if somebody has no more time
                _write(parsed, [cell.name for cell in wanted[: len(results) // each]], results)
    return 0


def _write(parsed: argparse.Namespace, names: Sequence[str], results: Sequence[Result]) -> None:
    text = page_of(names, results, seeds=parsed.seeds, requests=parsed.requests)
    Path(parsed.out).write_text(text, encoding="utf-8")


def _simulated(job: tuple[Cell, str, int]) -> Result:
    cell, policy, seed = job
    name = f"{policy}-exact" if cell.exact and policy not in ONE_INDEX else policy
    outcome = run(cell.scenario, name, demand=demand_for(cell, seed), seed=seed)
    figures = summarize(outcome, cell.scenario.goals).all
    ttft = figures.ttft
    if ttft is None:
        return Result(cell.name, policy, seed, float("nan"), float("nan"), float("nan"), 0.0, 0.0)
    return Result(
        cell.name, policy, seed, ttft.p50, ttft.p90, ttft.p99, figures.hit_rate, figures.goodput
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m epp.sim.study", description=__doc__)
    parser.add_argument("traces", help="folder with traces, searched through")
    add = partial(parser.add_argument, metavar="N", type=int)
    add("--requests", default=1500, help="of each run")
    add("--seeds", default=5, help="runs of each policy in each cell")
    add("--processes", default=2, help="runs at a time")
    parser.add_argument("--only", default="", help="cells whose name has this in it")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    parser.add_argument("--out", default="docs/policy_report.md", metavar="FILE")
    return parser


if __name__ == "__main__":
    sys.exit(main())
