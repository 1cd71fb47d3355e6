"""The figures of runs as tables for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.markup import escape
from rich.table import Table

from epp.sim.report.figures import Figures, Routing, Summary
from epp.sim.report.seeds import Difference, Interval

_MEANS = (
    "ttft_p50",
    "ttft_p90",
    "ttft_p99",
    "tpot_p50",
    "e2e_p99",
    "goodput",
    "hit_rate",
    "regret",
)


DIFFERENCE = ("figure", "first", "second", "change", "95 % interval", "")
"""Columns of a comparison."""


def tables_of(found: Sequence[Summary]) -> tuple[Table, Table]:
    """Return what clients saw and how requests were spread; classes where there are several."""
    seen = _table(
        "requests", "TTFT p50", "p90", "p99", "TPOT p50", "E2E p90", "goodput", "shed", "failed"
    )
    spread = _table(
        "hit rate",
        "ideal",
        "one LRU",
        "regret",
        "imbalance",
        "herd",
        "flaps",
        "elsewhere",
        "preempted",
    )
    for each in found:
        seen.add_row(escape(each.policy), str(each.seed), "all", *seen_of(each.all))
        spread.add_row(escape(each.policy), str(each.seed), "all", *_spread(each.all, each.routing))
        for name, figures in each.classes.items() if len(each.classes) > 1 else ():
            seen.add_row("", "", escape(name), *seen_of(figures))
            spread.add_row("", "", escape(name), *_spread(figures, None))
    return seen, spread


def means_of(named: Sequence[tuple[str, Mapping[str, Interval]]]) -> Table:
    """Return means over seeds with half of their 95 % interval."""
    table = Table(box=None, pad_edge=False)
    table.add_column("mean over seeds\n(times in s)", no_wrap=True)
    for name in _MEANS:  # where the terminal is narrow the interval goes below: nothing is cut off
        table.add_column(name, justify="right")
    for policy, intervals in named:
        cells = []
        for name in _MEANS:
            each = intervals.get(name)
            cells.append("-" if each is None else f"{each.mean:.3g} ±{each.half:.2g}")
        table.add_row(escape(policy), *cells)
    return table


def differences_of(differences: Sequence[Difference]) -> Table:
    """Return what two scenarios differ in."""
    table = Table(box=None, pad_edge=False)
    for name in DIFFERENCE:
        table.add_column(name, justify="left" if name in ("figure", "") else "right", no_wrap=True)
    for each in differences:
        table.add_row(*map(escape, difference_of(each)))
    return table


def difference_of(each: Difference) -> Sequence[str]:
    """Return the cells of a difference, as `DIFFERENCE` names them."""
    several = len(each.change.values) > 1
    return (
        each.name,
        f"{each.one.mean:.4g}",
        f"{each.other.mean:.4g}",
        f"{each.change.mean:+.3g}",
        f"{each.change.low:+.3g} to {each.change.high:+.3g}" if several else "one seed",
        "clear" if each.is_clear else "may be chance",
    )


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("policy", "seed", "class"):
        table.add_column(name, no_wrap=True)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def seen_of(figures: Figures) -> Sequence[str]:
    """Return the cells of what clients saw: requests, TTFT, TPOT, E2E and how many were answered."""
    ttft, tpot, e2e = figures.ttft, figures.tpot, figures.e2e
    return [
        str(figures.requests),
        *([_in_words(each) for each in (ttft.p50, ttft.p90, ttft.p99)] if ttft else ["-"] * 3),
        _in_words(tpot.p50) if tpot else "-",
        _in_words(e2e.p90) if e2e else "-",
        f"{figures.goodput:.3f}",
        str(figures.shed),
        str(figures.failed),
    ]


def _spread(figures: Figures, routing: Routing | None) -> list[str]:
    shared = ["", "", "", ""]
    if routing is not None:
        shared = [
            f"{routing.imbalance:.2f}", str(routing.herd), f"{routing.flaps:.3f}",
            f"{routing.elsewhere:.3f}",
        ]  # fmt: skip
    return [
        f"{figures.hit_rate:.3f}",
        f"{figures.ideal_hit_rate:.3f}",
        f"{routing.reachable_hit_rate:.3f}" if routing else "",
        f"{figures.regret:.3f}",
        *shared,
        str(figures.preemptions),
    ]


def _in_words(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"
