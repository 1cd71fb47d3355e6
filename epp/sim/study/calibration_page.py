"""The simulator against published curves as a page in Markdown: what was fitted, and what is off."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean

import msgspec

from epp.sim.calibrate.fit import Numbers
from epp.sim.study.measured import Point

BROKEN_SECONDS = 10.0  #: TTFT p90 from which on a fleet has broken
QUIET_SECONDS = 1.0  #: mean TTFT up to which nobody waits long
REGIMES = """\
Regimes are by the measured TTFT: quiet, mean up to 1 s; broken, p90 from 10 s on; strained between
them. Errors of quiet stages are in seconds, as means; those of others as a share.

- Quiet: what is missing is before and after the engine - HTTP, gateway, tokenizing of thousands of
  tokens, the client - and differs between the two published set-ups. One number, seconds a request,
  stands for all of it, and its spread is not simulated.
- Strained: a fleet within some percent of what it can do. Who breaks first follows from which
  prompts met on which engine; single stages differ between seeds by more than the error.
- Broken: p90 counts the waves in which queues drain, about a minute each; one wave more or less is
  the error of single stages, and the mean is the better figure.
"""


class Curve(msgspec.Struct, frozen=True):
    """One policy of one benchmark."""

    name: str
    policy: str  #: as this simulator calls it
    measured: tuple[Point, ...]
    runs: tuple[tuple[Point, ...], ...]  #: of each seed

    @property
    def simulated(self) -> tuple[Point, ...]:
        """Means over the seeds."""
        return tuple(
            Point(
                points[0].qps, fmean(each.out_tok_s for each in points),
                fmean(each.ttft_p90_s for each in points),
                fmean(each.ttft_mean_s for each in points),
            )
            for points in zip(*self.runs, strict=True)
        )  # fmt: skip

    @property
    def errors(self) -> list[float]:
        """Of throughput, by stage."""
        pairs = zip(self.measured, self.simulated, strict=True)
        return [ours.out_tok_s / theirs.out_tok_s - 1 for theirs, ours in pairs]

    @property
    def mape(self) -> float:
        """Mean of the errors of throughput."""
        return fmean(abs(each) for each in self.errors)

    @property
    def benchmark(self) -> str:
        """Its name."""
        return self.name.rpartition("/")[0]


def page_of(curves: Sequence[Curve], fit: str, found: Numbers, more: str = "") -> str:
    """Return the page; ``more`` is a section on something else, before the stages."""
    parts = [_head(fit, found), _summary(curves, fit), _orders(curves), _regimes(curves)]
    parts += [more] if more else []
    return "\n".join([*parts, *(_stages(curve) for curve in curves)])


def breaks(points: Sequence[Point]) -> float | None:
    """Return the lowest rate from which on a fleet stays broken; None if it does not break."""
    lowest = None
    for point in points:
        if point.ttft_p90_s < BROKEN_SECONDS:
            lowest = None
        elif lowest is None:
            lowest = point.qps
    return lowest


def regime(point: Point) -> str:
    """Return how a fleet was in a measured stage."""
    if point.ttft_p90_s >= BROKEN_SECONDS:
        return "broken"
    return "quiet" if point.ttft_mean_s <= QUIET_SECONDS else "strained"


def _head(fit: str, found: Numbers) -> str:
    return (
        "# The simulator against published benchmarks\n\n"
        "Made by `make calibration-report ANCHORS=FILE LOGS=...`; see [simulator.md](simulator.md). Measured by "
        "others on real GPUs, simulated here. Five numbers of the engines are fitted to one curve, "
        f"`{fit}`; all others are predicted with them.\n\n"
        f"Fitted: prefill {found.prefill:.3g} and decode {found.decode:.3g} times the profile's, "
        f"{found.step * 1e3:.2g} ms a step, {found.sequence * 1e6:.2g} us a sequence in it, "
        f"{found.request:.2g} s a request.\n"
    )


def _summary(curves: Sequence[Curve], fit: str) -> str:
    lines = [
        "| curve | simulated as | tokens a second: MAPE | by seed | worst | breaks at | simulated |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for curve in curves:
        worst = max(curve.errors, key=abs)
        seeds = [msgspec.structs.replace(curve, runs=(each,)).mape for each in curve.runs]
        kind = " (fitted)" if curve.name == fit else ""
        lines.append(
            f"| {curve.name}{kind} | `{curve.policy}` | {curve.mape:.1%} "
            f"| {min(seeds):.1%} to {max(seeds):.1%} | {worst:+.0%} "
            f"| {_rate(curve.measured)} | {_rate(curve.simulated)} |"
        )
    held = [curve for curve in curves if curve.name != fit]
    if held:
        most = max(curve.mape for curve in held)
        lines += ["", f"Largest MAPE of a curve that was not fitted: {most:.1%}."]
    return "\n".join([*lines, ""])


def _rate(points: Sequence[Point]) -> str:
    found = breaks(points)
    return "does not" if found is None else f"{found:g}"


def _orders(curves: Sequence[Curve]) -> str:
    """Say in which order policies come, by the mean of their throughput."""
    lines = ["## Order of policies, by output tokens a second\n"]
    for benchmark in dict.fromkeys(curve.benchmark for curve in curves):
        ours = [curve for curve in curves if curve.benchmark == benchmark]
        lines.append(f"- {benchmark}, measured: {_order(ours, lambda each: each.measured)}")
        lines.append(f"- {benchmark}, simulated: {_order(ours, lambda each: each.simulated)}")
    return "\n".join([*lines, ""])


def _order(curves: Sequence[Curve], of: Callable[[Curve], Sequence[Point]]) -> str:
    rates = {
        curve.name.rpartition("/")[2]: fmean(point.out_tok_s for point in of(curve))
        for curve in curves
    }
    ordered = sorted(rates.items(), key=lambda each: -each[1])
    return ", ".join(f"{name} {rate:,.0f}" for name, rate in ordered)


def _regimes(curves: Sequence[Curve]) -> str:
    lines = [
        "## TTFT by regime\n", REGIMES,
        "| curve | regime | stages | mean TTFT | TTFT p90 |", "| --- | --- | --- | --- | --- |",
    ]  # fmt: skip
    for curve in curves:
        pairs = list(zip(curve.measured, curve.simulated, strict=True))
        for name in ("quiet", "strained", "broken"):
            chosen = [pair for pair in pairs if regime(pair[0]) == name]
            if chosen:
                means = _off(name, [(a.ttft_mean_s, b.ttft_mean_s) for a, b in chosen])
                p90s = _off(name, [(a.ttft_p90_s, b.ttft_p90_s) for a, b in chosen])
                lines.append(f"| {curve.name} | {name} | {len(chosen)} | {means} | {p90s} |")
    return "\n".join([*lines, ""])


def _off(name: str, pairs: Sequence[tuple[float, float]]) -> str:
    """Return how far simulated values are from measured ones."""
    if name == "quiet":
        return f"{fmean(ours - theirs for theirs, ours in pairs):+.2f} s"
    each = [ours / theirs - 1 for theirs, ours in pairs]
    return f"{fmean(each):+.0%}, without sign {fmean(abs(one) for one in each):.0%}"


def _stages(curve: Curve) -> str:
    lines = [
        f"## {curve.name}\n",
        "| requests/s | tokens/s | simulated | off | TTFT mean | simulated | p90 | simulated |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| {theirs.qps:g} | {theirs.out_tok_s:,.0f} | {ours.out_tok_s:,.0f} | {error:+.1%} "
        f"| {theirs.ttft_mean_s:.2f} | {ours.ttft_mean_s:.2f} "
        f"| {theirs.ttft_p90_s:.2f} | {ours.ttft_p90_s:.2f} |"
        for theirs, ours, error in zip(curve.measured, curve.simulated, curve.errors, strict=True)
    ]
    return "\n".join([*lines, ""])
