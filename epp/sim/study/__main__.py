"""``make policy-report TRACES=DIR``: every policy in every cell; a page in Markdown."""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from rich.progress import track

from epp.sim.baselines.catalog import POLICIES
from epp.sim.fleet.run import run
from epp.sim.report.figures import summarize
from epp.sim.study.cells import NEEDED, Cell, Traces, cells, demand_for
from epp.sim.study.page import ALONE, DEFAULT, ORACLE, OURS, Result, finalists, page_of

RIVALS = (
    DEFAULT,
    "llm-d-1-1-1",
    "llm-d-load",
    "llm-d-sticky",
    "round-robin",
    "random",
    "least-request",
    "p2c",
    "session-hash",
    "chwbl",
    "cache-aware",
    "greedy",
    "lmetric",
    "dynamo",
    "dynamo-0.5",
    "least-load",
    "aibrix",
    "preble",
)  #: all but those that choose as another here does


def main() -> int:
    """Run the report; return the exit status."""
    parsed = _parser().parse_args()
    traces = Traces(Path(parsed.traces))
    if not traces.folder.is_dir():
        sys.stderr.write(f"there is no folder {parsed.traces}\n")
        return 2
    if lacking := [name for name in NEEDED if not traces.find(name)]:
        sys.stderr.write(f"{parsed.traces}: cells without {', '.join(lacking)} are left out\n")
    wanted = [
        cell for cell in cells(traces, parsed.requests)
        if parsed.only in cell.name
    ]  # fmt: skip
    if not wanted:
        sys.stderr.write(f"no cell: {parsed.traces} holds none of the traces\n")
        return 2
    policies = tuple(dict.fromkeys((OURS, ALONE, DEFAULT, ORACLE, *(parsed.rivals or RIVALS))))
    first = [(cell, policy, 1) for cell in wanted for policy in policies]
    with ProcessPoolExecutor(parsed.processes) as pool:
        done = track(pool.map(_simulated, first), "all", len(first), disable=parsed.quiet)
        results = list(done)
        more = [
            (cell, policy, seed)
            for cell in wanted
            for policy in finalists([each for each in results if each.cell == cell.name])
            for seed in range(2, parsed.seeds + 1)
        ]
        done = track(pool.map(_simulated, more), "finalists", len(more), disable=parsed.quiet)
        results += done
    names = [cell.name for cell in wanted]
    text = page_of(names, results, seeds=parsed.seeds, requests=parsed.requests)
    Path(parsed.out).write_text(text, encoding="utf-8")
    return 0


def _simulated(job: tuple[Cell, str, int]) -> Result:
    cell, policy, seed = job
    exact = f"{policy}-exact"
    name = exact if cell.exact and exact in POLICIES else policy
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
    parser.add_argument(
        "--rivals",
        nargs="+",
        choices=RIVALS,
        metavar="POLICY",
        help="these only, the default and the oracle; not given: all",
    )
    parser.add_argument("--only", default="", help="cells whose name has this in it")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    parser.add_argument("--out", default="docs/policy_report.md", metavar="FILE")
    return parser


if __name__ == "__main__":
    sys.exit(main())
