"""``make calibration-report ANCHORS=FILE``: the simulator against published measurements.

Numbers of the engines are fitted to one curve: one policy of one benchmark. All other curves are
predicted with them, those of other models too. Logs of requests are fitted one by one, and each
predicts the others. A page in Markdown says how far each one is off.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import msgspec
from rich.progress import Progress

from epp.errors import ConfigError
from epp.sim.baselines.catalog import policy_of
from epp.sim.calibrate.certainty import RUNS
from epp.sim.calibrate.fit import WIDTHS, Numbers, corrected, numbers
from epp.sim.calibrate.search import least
from epp.sim.fleet.run import run
from epp.sim.fleet.scenario import Pickers, Pods, Scenario
from epp.sim.profiles import by_name
from epp.sim.study import logs as measured_logs
from epp.sim.study.calibration_page import Curve, page_of
from epp.sim.study.measured import Benchmark, Point, Setup, demand_of, points, read_benchmarks

FIT = "llmd_37_capacity/random-scheduling"
START = Numbers(1.2, 1.2, 0.004, 0.00002, 0.1)  #: the profiles' correction of published servers
POLICIES: Mapping[str, str] = {
    "llmd_73_capacity/precise-scheduling": "llm-d-2-2-3-exact",
    "precise-scheduling": "llm-d-2-1-1-exact",
    "estimated-scheduling": "llm-d-estimated",
    "default-scheduling": "llm-d-estimated-2-1-1",
    "load-scheduling": "llm-d-load",
    "random-scheduling": "random",
}
"""What a file's policies are here, by name, some of one benchmark only."""

#: Not fitted: what llm-d's picker, vLLM on an H100 and Envoy do unless told otherwise.
SCRAPE_SECONDS, MAX_NUM_SEQS, GATEWAY_REQUESTS = 0.05, 1024, 1024


class Job(msgspec.Struct, frozen=True):
    """One run."""

    name: str  #: benchmark and policy
    policy: str  #: as this simulator calls it
    benchmark: Benchmark
    scenario: Scenario
    seed: int

    @property
    def measured(self) -> tuple[Point, ...]:
        """The curve."""
        return self.benchmark.per_qps[self.name.rpartition("/")[2]]


def main() -> int:
    """Write the report; return the exit status."""
    parsed = parser().parse_args()
    try:
        jobs = jobs_of(parsed)
        fit = curve_to_fit(jobs, parsed.fit)
        out = out_of(parsed)
        logs = measured_logs.read_logs(parsed.log)
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    with ProcessPoolExecutor(parsed.processes) as pool, Progress(disable=parsed.quiet) as progress:
        task = progress.add_task("fitting", total=parsed.runs)
        found = fitted(jobs[fit], parsed.runs, lambda: progress.advance(task))
        wanted = [
            msgspec.structs.replace(job, scenario=corrected(job.scenario, found), seed=seed)
            for job in jobs.values()
            for seed in range(1, parsed.seeds + 1)
        ]
        task = progress.add_task("predicting", total=len(wanted))
        results = []
        for result in pool.map(simulated, wanted):
            results.append(result)
            progress.advance(task)
        task = progress.add_task("logs", total=len(logs) * (parsed.log_runs + RUNS))
        fits = measured_logs.fitted(logs, parsed.log_runs, lambda: progress.advance(task))
    curves = [
        Curve(name, job.policy, job.measured, tuple(
            result for each, result in zip(wanted, results, strict=True) if each.name == name
        ))
        for name, job in jobs.items()
    ]  # fmt: skip
    more = measured_logs.section_of(fits) if fits else ""
    out.write_text(page_of(curves, fit, found, more), encoding="utf-8")
    return 0


def jobs_of(parsed: argparse.Namespace) -> dict[str, Job]:
    """Return a job for each curve of a file, by the names of benchmark and policy.

    Raises:
        ConfigError: the file, a policy or a profile cannot be used.
    """
    policies = dict(POLICIES) | _pairs(parsed.policy)
    profiles = _pairs(each if "=" in each else f"={each}" for each in parsed.profile)
    found = {}
    for name, benchmark in read_benchmarks([Path(each) for each in parsed.anchors]).items():
        profile = profiles.get(name, profiles.get("", ""))
        try:
            scenario = scenario_of(benchmark.setup, profile)
        except ConfigError as error:
            raise ConfigError(f"{name}: {error}; choose one: --profile {name}=PROFILE") from error
        for policy in benchmark.per_qps:
            full = f"{name}/{policy}"
            chosen = policies.get(full) or policies.get(policy, policy)
            try:
                policy_of(chosen)
            except ConfigError as error:
                hint = f"say what it is here: --policy {policy}=POLICY"
                raise ConfigError(f"{full}: {error}; {hint}") from error
            found[full] = Job(full, chosen, benchmark, scenario, 1)
    return found


def out_of(parsed: argparse.Namespace) -> Path:
    """Return where the page goes.

    Raises:
        ConfigError: there is no such folder.
    """
    out = Path(parsed.out)
    if not out.parent.is_dir():
        raise ConfigError(f"--out {out}: there is no folder {out.parent}")
    return out


def curve_to_fit(jobs: Mapping[str, Job], asked: str) -> str:
    """Return the curve ``asked`` for; of a published one, a random or the first, if none is.

    Raises:
        ConfigError: there is none of that name.
    """
    if asked and asked not in jobs:
        raise ConfigError(f"no curve {asked!r} to fit; there are {', '.join(jobs)}")
    randoms = [name for name, job in jobs.items() if job.policy == "random"]
    return next(name for name in (asked, FIT, *randoms, *jobs) if name in jobs)


def _pairs(told: Iterable[str]) -> dict[str, str]:
    """Return what is told as ``NAME=VALUE``.

    Raises:
        ConfigError: a value lacks.
    """
    pairs = [each.rpartition("=") for each in told]
    for name, between, value in pairs:
        if not between or not value:
            raise ConfigError(f"{name or value!r} is not told as NAME=VALUE")
    return {name: value for name, _, value in pairs}


def scenario_of(setup: Setup, profile: str = "") -> Scenario:
    """Return the fleet of a benchmark.

    Raises:
        ConfigError: there is no profile of its model and GPU.
    """
    model = setup.model.rpartition("/")[2].lower().removesuffix("-instruct")
    named = profile or f"{model}-{setup.gpu.lower()}" + (f"-tp{setup.tp}" if setup.tp > 1 else "")
    by_name(named)
    pods = Pods(
        count=setup.pods, profile=named, kv_tokens=setup.kv_tokens_per_pod,
        max_num_seqs=MAX_NUM_SEQS,
    )  # fmt: skip
    return Scenario(
        fleet=(pods,),
        pickers=Pickers(scrape_seconds=SCRAPE_SECONDS),
        gateway_requests=GATEWAY_REQUESTS,
    )


def simulated(job: Job) -> tuple[Point, ...]:
    """Return what is simulated of a curve."""
    demand = demand_of(job.benchmark.setup, job.measured, job.seed)
    outcome = run(job.scenario, job.policy, demand=demand, seed=job.seed)
    found = points(job.benchmark.setup, outcome.stories)
    return tuple(found[each.qps] for each in job.measured)


def fitted(job: Job, calls: int, tell: Callable[[], None]) -> Numbers:
    """Return the numbers of `calibrate.fit` with which one curve comes closest."""

    def loss(point: Sequence[float]) -> float:
        tell()
        scenario = corrected(job.scenario, numbers(tuple(point)))
        return distance(job.measured, simulated(msgspec.structs.replace(job, scenario=scenario)))

    start = tuple(math.log(value) for value in START)
    return numbers(least(loss, start, WIDTHS, calls))


def distance(measured: Sequence[Point], found: Sequence[Point]) -> float:
    """Return how far two curves are apart: throughput and mean TTFT, in logarithms."""
    logs = [
        math.log(max(value, 1e-3) / max(other, 1e-3))
        for a, b in zip(measured, found, strict=True)
        for value, other in ((a.out_tok_s, b.out_tok_s), (a.ttft_mean_s, b.ttft_mean_s))
    ]
    return math.sqrt(sum(each * each for each in logs) / len(logs))


def parser() -> argparse.ArgumentParser:
    """Return what reads the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m epp.sim.study.calibration", description=__doc__
    )
    parser.add_argument(
        "anchors", nargs="+", metavar="FILE", help="JSON with `setup` and `per_qps` of benchmarks"
    )
    parser.add_argument(
        "--fit", default="", metavar="BENCHMARK/POLICY",
        help=f"curve to fit; not given: {FIT}, or else the first of random choice, or else the first",
    )  # fmt: skip
    parser.add_argument(
        "--policy", action="append", default=[], metavar="NAME=POLICY",
        help="what a policy of the file is here, of `epp sim policies` or a file; repeat",
    )  # fmt: skip
    parser.add_argument(
        "--profile", action="append", default=[], metavar="[BENCHMARK=]PROFILE",
        help="of engines, instead of by their model; of one benchmark or all",
    )  # fmt: skip
    parser.add_argument(
        "--log", action="append", default=[], metavar="SCENARIO.yaml=LOG",
        help="a log of requests and its fleet, as of `epp sim calibrate`; repeat: each predicts all",
    )  # fmt: skip
    parser.add_argument("--log-runs", type=int, default=60, help="to fit a log (%(default)s)")
    parser.add_argument("--runs", type=int, default=36, help="simulations to fit (%(default)s)")
    parser.add_argument("--seeds", type=int, default=2, help="of predictions (%(default)s)")
    parser.add_argument("--processes", type=int, default=2, help="(%(default)s)")
    parser.add_argument("--out", default="docs/calibration_report.md", help="page (%(default)s)")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    return parser


if __name__ == "__main__":
    sys.exit(main())
