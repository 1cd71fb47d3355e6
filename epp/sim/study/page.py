"""The report as a page in Markdown: where the policy wins, and where it does not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean

import msgspec

from epp.sim.report.seeds import interval

OURS, DEFAULT = "best", "llm-d-2-2-3"
CLOSE, MEDIAN = 1.05, 1.10  #: times the best p99 and the best p50 that are still a success


class Result(msgspec.Struct, frozen=True):
    """One run. Seconds of time to first token, and shares."""

    cell: str
    policy: str
    seed: int
    p50: float
    p90: float
    p99: float
    hits: float
    goodput: float


class Verdict(msgspec.Struct, frozen=True):
    """What one cell says."""

    p99: float  #: ours over the best of the others, means over seeds
    p50: float  #: likewise
    p90_default: float  #: of the default over ours

    @property
    def holds(self) -> bool:
        """Whether ours is the best, or as good as."""
        return self.p99 <= CLOSE and self.p50 <= MEDIAN


def page_of(cells: Sequence[str], results: Sequence[Result], *, seeds: int, requests: int) -> str:
    """Return the page."""
    parts = [_head(seeds, requests), _summary(cells, results)]
    parts += [_cell(cell, [each for each in results if each.cell == cell]) for cell in cells]
    return "\n".join(parts)


def verdict_of(results: Sequence[Result]) -> Verdict:
    """Judge one cell."""

    def mean(policy: str, figure: Callable[[Result], float]) -> float:
        return fmean(figure(each) for each in results if each.policy == policy)

    others = sorted({each.policy for each in results} - {OURS})
    best99 = min(mean(policy, lambda each: each.p99) for policy in others)
    best50 = min(mean(policy, lambda each: each.p50) for policy in others)
    return Verdict(
        mean(OURS, lambda each: each.p99) / best99,
        mean(OURS, lambda each: each.p50) / best50,
        mean(DEFAULT, lambda each: each.p90) / mean(OURS, lambda each: each.p90),
    )


def _head(seeds: int, requests: int) -> str:
    return f"""\
# Policy report

Made by `make policy-report TRACES=DIR`; see [policy.md](policy.md). Time to first token in seconds,
means over {seeds} seeds of at most {requests} requests each, of the second half of each trace; with
95 % intervals for p99. Engines: 8, Qwen3-32B on two H200 as `epp engine` times them.

A cell holds if p99 is at most {CLOSE:g} times the best other policy's, and p50 {MEDIAN:g} times.
"""


def _summary(cells: Sequence[str], results: Sequence[Result]) -> str:
    lines = [
        "| cell | p99 / best other | p50 / best other | p90 of llm-d-2-2-3 / ours | holds |",
        "| --- | --- | --- | --- | --- |",
    ]
    for cell in cells:
        found = verdict_of([each for each in results if each.cell == cell])
        holds = "yes" if found.holds else "**no**"
        lines.append(
            f"| {cell} | {found.p99:.2f} | {found.p50:.2f} | {found.p90_default:.2f} | {holds} |"
        )
    return "\n".join([*lines, ""])


def _cell(cell: str, results: Sequence[Result]) -> str:
    lines = [
        f"## {cell}\n",
        "| policy | p50 | p90 | p99 | hit rate | goodput |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for policy in dict.fromkeys(each.policy for each in results):
        runs = [each for each in results if each.policy == policy]
        p99 = interval([each.p99 for each in runs])
        means = [fmean(getattr(each, name) for each in runs) for name in ("p50", "p90")]
        shares = [fmean(getattr(each, name) for each in runs) for name in ("hits", "goodput")]
        lines.append(
            f"| {policy} | {means[0]:.2f} | {means[1]:.2f} | {p99.mean:.2f} ± {p99.half:.2f} "
            f"| {shares[0]:.3f} | {shares[1]:.3f} |"
        )
    return "\n".join([*lines, ""])
