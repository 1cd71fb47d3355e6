"""Flags of ``epp sim``, and its verbs. Each imports what it runs when it runs."""

from __future__ import annotations

import argparse
from typing import Any


def add_arguments(sim: argparse.ArgumentParser) -> None:
    """Add the verbs of ``epp sim``."""
    verbs = sim.add_subparsers(title="verbs", metavar="VERB", required=True, parser_class=type(sim))
    _run(verbs)
    _policies(verbs)


def _run(verbs: Any) -> None:
    run = verbs.add_parser(
        "run",
        help="simulate a scenario",
        description="Simulate a scenario: engines, pickers, traffic, and what changes meanwhile. "
        "The same seed gives the same figures.",
    )
    run.add_argument("scenario", metavar="SCENARIO.yaml")
    run.add_argument(
        "--policy", action="append", default=[], metavar="NAME|FILE",
        help="instead of the scenario's; again for several, side by side",
    )  # fmt: skip
    run.add_argument("--seed", type=int, default=None, help="instead of the scenario's")
    run.add_argument("--seeds", type=int, default=None, help="runs, instead of the scenario's")
    run.add_argument(
        "--compare", default="", metavar="OTHER.yaml",
        help="run a second scenario with the same seeds, and tell the differences with intervals",
    )  # fmt: skip
    run.add_argument("--json", default="", metavar="FILE", help="the figures")
    run.add_argument("--html", default="", metavar="FILE", help="a page with drawings")
    run.add_argument(
        "--benchmark-report", default="", metavar="FOLDER",
        help="a report of each run as llm-d-benchmark writes them (v0.2.1)",
    )  # fmt: skip
    run.set_defaults(run=_run_scenario)


def _run_scenario(parsed: argparse.Namespace) -> int:
    from epp.sim.report.show import run_and_show  # noqa: PLC0415

    return run_and_show(parsed)


def _policies(verbs: Any) -> None:
    policies = verbs.add_parser("policies", help="list the policies that a scenario may name")
    policies.set_defaults(run=_run_policies)


def _run_policies(parsed: argparse.Namespace) -> int:
    from epp.sim.baselines.catalog import POLICIES  # noqa: PLC0415

    for name, (_, what) in POLICIES.items():
        print(f"{name:24} {what}")  # noqa: T201
    return 0
