"""Flags of ``epp sim``, and its verbs. Each imports what it runs when it runs."""

from __future__ import annotations

import argparse
from typing import Any

from epp.terminal.arguments import positive
from epp.traffic.arguments import add_reading


def add_arguments(sim: argparse.ArgumentParser) -> None:
    """Add the verbs of ``epp sim``."""
    verbs = sim.add_subparsers(title="verbs", metavar="VERB", required=True, parser_class=type(sim))
    _run(verbs)
    _policies(verbs)
    _calibrate(verbs)
    _kv(verbs)


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
    run.add_argument("--seeds", type=positive, default=None, help="runs, instead of the scenario's")
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


def _calibrate(verbs: Any) -> None:
    calibrate = verbs.add_parser(
        "calibrate",
        help="make engines as fast as measured ones",
        description="Fit five numbers of a scenario's engines to what was measured: a trace that "
        "tells how its answers went, such as `epp serve --record-file` writes, or a log of requests "
        "(JSON lines or CSV: arrival_s, input_tokens, output_tokens, ttft_s, e2e_s). The scenario's "
        "traffic is not used. The exit status is 1 if anything speaks against the result.",
    )
    calibrate.add_argument("scenario", metavar="SCENARIO.yaml")
    calibrate.add_argument("measured", metavar="TRACE|LOG")
    calibrate.add_argument("--runs", type=positive, default=60, help="simulations, about")
    calibrate.add_argument("--check", default="", metavar="TRACE|LOG", help="another, not fitted")
    calibrate.add_argument(
        "--check-scenario", default="", metavar="SCENARIO.yaml", help="of --check, if it differs"
    )
    calibrate.add_argument(
        "--json", default="", metavar="FILE", help="numbers, intervals, errors by class, warnings"
    )
    add_reading(calibrate)
    calibrate.set_defaults(run=_run_calibrate)


def _run_calibrate(parsed: argparse.Namespace) -> int:
    from epp.sim.calibrate.show import calibrate  # noqa: PLC0415

    return calibrate(parsed)


def _kv(verbs: Any) -> None:
    kv = verbs.add_parser("kv", help="tell how many tokens a KV cache holds")
    kv.add_argument("--gpu-gib", type=float, default=79.65, help="memory of a GPU")
    kv.add_argument("--gpus", type=positive, default=1, help="tensor-parallel size")
    kv.add_argument("--utilization", type=float, default=0.9, help="vLLM's gpu_memory_utilization")
    kv.add_argument("--weights-gib", type=float, required=True, help="of all GPUs together")
    kv.add_argument("--layers", type=positive, required=True)
    kv.add_argument("--kv-heads", type=positive, required=True)
    kv.add_argument("--head-size", type=positive, default=128)
    kv.add_argument("--bytes", type=positive, default=2, help="of a value; 1 for FP8")
    kv.set_defaults(run=_run_kv)


def _run_kv(parsed: argparse.Namespace) -> int:
    from epp.sim.calibrate.show import kv  # noqa: PLC0415

    return kv(parsed)
