"""The report as a page in Markdown: where the policy wins, and where it does not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from statistics import fmean

import msgspec

from epp.sim.fleet.scenario import Pickers
from epp.sim.report.seeds import Interval, interval
from epp.sim.study.cells import LONGER

OURS, DEFAULT = "best", "llm-d-2-2-3"
ALONE = "best-alone"  #: ours, of replicas that tell each other nothing: no rival
ORACLE = "oracle"  #: knows all: no rival, but what could be had at most
BY_P99, BY_P50 = 4, 2  #: how many go on to more seeds
COLUMNS = (
    "cell", "p99 / best other", "which", "p50 / best other",
    "p99 less best other's, in pairs", "p90: default / ours", "default / oracle", "holds",
)  # fmt: skip
PEERS_MS = (Pickers().peers_seconds or 0.0) * 1000.0
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
    p90_bound: float  #: of the default over the oracle's
    best: str  #: of the others, by p99
    pairs: Interval  #: p99 of ours less that of `best`, in runs with the same traffic

    @property
    def holds(self) -> bool:
        """Whether ours is the best, or as good as."""
        return self.p99 <= CLOSE and self.p50 <= MEDIAN


def finalists(results: Sequence[Result]) -> list[str]:
    """Return whom more seeds are worth, by one run of each in a cell: who may be its best.

    Ours, the default and the oracle are always among them.
    """
    others = [each for each in results if each.policy not in (OURS, ALONE, DEFAULT, ORACLE)]
    best = sorted(others, key=lambda each: each.p99)[:BY_P99]
    best += sorted(others, key=lambda each: each.p50)[:BY_P50]
    return list(dict.fromkeys([OURS, ALONE, DEFAULT, ORACLE, *(each.policy for each in best)]))


def page_of(cells: Sequence[str], results: Sequence[Result], *, seeds: int, requests: int) -> str:
    """Return the page."""
    parts = [_head(seeds, requests), _summary(cells, results)]
    parts += [_cell(cell, [each for each in results if each.cell == cell]) for cell in cells]
    return "\n".join(parts)


def verdict_of(results: Sequence[Result]) -> Verdict:
    """Judge one cell."""

    def mean(policy: str, figure: Callable[[Result], float]) -> float:
        return fmean(figure(each) for each in results if each.policy == policy)

    runs = Counter(each.policy for each in results)
    others = sorted(
        each for each in runs if each not in (OURS, ALONE, ORACLE) and runs[each] == runs[OURS]
    )
    best = min(others, key=lambda policy: mean(policy, lambda each: each.p99))
    theirs = {each.seed: each.p99 for each in results if each.policy == best}
    ours = {each.seed: each.p99 for each in results if each.policy == OURS}
    pairs = interval([ours[seed] - theirs[seed] for seed in ours])
    best50 = min(mean(policy, lambda each: each.p50) for policy in others)
    return Verdict(
        mean(OURS, lambda each: each.p99) / mean(best, lambda each: each.p99),
        mean(OURS, lambda each: each.p50) / best50,
        mean(DEFAULT, lambda each: each.p90) / mean(OURS, lambda each: each.p90),
        mean(DEFAULT, lambda each: each.p90) / mean(ORACLE, lambda each: each.p90),
        best,
        pairs,
    )


def _head(seeds: int, requests: int) -> str:
    return f"""\
# Policy report

Made by `make policy-report TRACES=DIR`; see [policy.md](policy.md). Time to first token in seconds,
means over {seeds} seeds of at most {requests} requests each ({LONGER} times as many where a cell is
called longer), of the second half of each trace, other ones for each seed; with 95 % intervals for
p99. Engines: 8, Qwen3-32B on two H200 as `epp engine` times them.

`{OURS}` is the preset with replicas that tell each other what they sent ([peers.md](peers.md)),
{PEERS_MS:g} ms late; `{ALONE}` the same preset with replicas that do not. The other policies are as
published: their replicas tell each other nothing.

All policies run once in each cell; those with the {BY_P99} best p99 and the {BY_P50} best p50, ours,
and the default run with all seeds, and the cell is judged by them. A cell holds if p99 is at most
{CLOSE:g} times the best other policy's, and p50 {MEDIAN:g} times. The oracle knows what is hidden from
pickers: queues, caches and speeds as they are at that moment. It is no rival, but tells what knowledge is worth. The
default is {DEFAULT}.
"""


def _summary(cells: Sequence[str], results: Sequence[Result]) -> str:
    lines = [
        f"| {' | '.join(COLUMNS)} |",
        "| --- " * len(COLUMNS) + "|",
    ]
    for cell in cells:
        found = verdict_of([each for each in results if each.cell == cell])
        holds = "yes" if found.holds else "**no**"
        lines.append(
            f"| {cell} | {found.p99:.2f} | {found.best} | {found.p50:.2f} "
            f"| {found.pairs.mean:+.2f} ± {found.pairs.half:.2f} | {found.p90_default:.2f} | {found.p90_bound:.2f} | {holds} |"
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
        spread = f" ± {p99.half:.2f}" if len(runs) > 1 else ""
        lines.append(
            f"| {policy} | {means[0]:.2f} | {means[1]:.2f} | {p99.mean:.2f}{spread} "
            f"| {shares[0]:.3f} | {shares[1]:.3f} |"
        )
    return "\n".join([*lines, ""])
