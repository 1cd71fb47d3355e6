"""Measured logs of requests, each fitted and predicted with the numbers of the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from epp.errors import ConfigError
from epp.sim.calibrate.certainty import Interval, intervals
from epp.sim.calibrate.fit import Numbers, corrected, fit
from epp.sim.calibrate.measured import demand_measured
from epp.sim.calibrate.quality import Errors, Quality, quality
from epp.sim.calibrate.verdict import doubts_of, doubts_of_fit
from epp.sim.demand.traffic import Demand
from epp.sim.fleet.scenario import Scenario, read_scenario
from epp.traffic.files import read_trace

HEAD = """\
## Logs of requests, each predicted from the others

Logs of real engines, request by request. Five numbers are fitted to each log (`epp sim calibrate`), and
all logs are simulated with them, those of other GPUs too: a fleet's own table stays, the numbers are
carried over. Simulated over measured; MAPE is over deciles and p95.

| fitted to | predicted | requests | TTFT p50 | p90 | MAPE | E2E p50 | p90 | MAPE | makespan |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
"""


class Log(msgspec.Struct, frozen=True):
    """A log, and the fleet that it was measured on."""

    name: str
    scenario: Scenario
    demand: Demand


class Fit(msgspec.Struct, frozen=True):
    """What was found of one log, and of the others with it."""

    name: str
    numbers: Numbers
    intervals: dict[str, Interval]
    before: Quality  #: with the profile as it is
    found: dict[str, Quality]  #: by name of the log
    doubts: Sequence[str]


def read_logs(told: Sequence[str]) -> list[Log]:
    """Return the logs told as ``SCENARIO.yaml=LOG``, named by their scenarios.

    Raises:
        ConfigError: one cannot be used.
    """
    logs: list[Log] = []
    for each in told:
        path, between, log = each.partition("=")
        if not between or not path or not log:
            raise ConfigError(f"--log {each!r} is not told as SCENARIO.yaml=LOG")
        name = Path(path).stem
        if name in [other.name for other in logs]:
            raise ConfigError(f"--log {each}: {name} is there twice")
        try:
            logs.append(Log(name, read_scenario(path), demand_measured(read_trace([log]))))
        except ConfigError as error:
            raise ConfigError(f"--log {each}: {error}") from error
    return logs


def fitted(logs: Sequence[Log], calls: int, tell: Callable[[], None] = lambda: None) -> list[Fit]:
    """Fit each log with about ``calls`` simulations, and predict all others.

    Raises:
        ConfigError: a fleet cannot answer what is asked of it.
    """
    return [_fit(log, logs, calls, tell) for log in logs]


def _fit(log: Log, logs: Sequence[Log], calls: int, tell: Callable[[], None]) -> Fit:
    best = fit(log.scenario, log.demand, calls=calls, tell=tell)
    known = intervals(log.scenario, log.demand, best.numbers, best.after.loss, tell)
    found = {
        each.name: best.after
        if each is log
        else quality(corrected(each.scenario, best.numbers), each.demand)
        for each in logs
    }
    doubts = [f"{log.name}: {doubt}" for doubt in doubts_of_fit(best.after, known)]
    for name, of in found.items():
        if name != log.name:
            doubts += [f"{log.name}, {name} predicted: {doubt}" for doubt in doubts_of(of)]
    return Fit(log.name, best.numbers, known, best.before, found, doubts)


def section_of(fits: Sequence[Fit]) -> str:
    """Return the section of the page."""
    lines = []
    for each in fits:
        lines.append(_row("nothing, the profile as it is", each.name, each.before))
        lines += [
            _row(each.name, f"{name} (fitted)" if name == each.name else name, of)
            for name, of in each.found.items()
        ]
    others = [of for each in fits for name, of in each.found.items() if name != each.name]
    said = [_numbers(each) for each in fits]
    if others:
        most = max(_worst(of.all) for of in others)
        said.append(f"Largest error of a median, p90 or MAPE that was not fitted: {most:.1%}.")
    said += [f"Warning: {doubt}." for each in fits for doubt in each.doubts]
    return HEAD + "\n".join([*lines, "", "\n\n".join(said), ""])


def _numbers(of: Fit) -> str:
    low, high = of.intervals["prefill"].low, of.intervals["prefill"].high
    slow, fast = of.intervals["decode"].low, of.intervals["decode"].high
    each = of.numbers
    return (
        f"{of.name}: prefill {each.prefill:.3g} ({low:.2g} to {high:.2g}) and decode "
        f"{each.decode:.3g} ({slow:.2g} to {fast:.2g}) times the profile's, {each.step * 1e3:.2g} ms "
        f"a step, {each.sequence * 1e6:.2g} us a sequence in it, {each.request:.2g} s a request."
    )


def _worst(each: Errors) -> float:
    return max(
        *(abs(error) for error in (each.ttft_p50, each.ttft_p90, each.e2e_p50, each.e2e_p90)),
        each.ttft_mape, each.e2e_mape,
    )  # fmt: skip


def _row(fitted_to: str, name: str, of: Quality) -> str:
    each = of.all
    return (
        f"| {fitted_to} | {name} | {each.requests} | {each.ttft_p50:+.1%} | {each.ttft_p90:+.1%} "
        f"| {each.ttft_mape:.1%} | {each.e2e_p50:+.1%} | {each.e2e_p90:+.1%} | {each.e2e_mape:.1%} "
        f"| {of.makespan:+.1%} |"
    )
