"""What exact prefix knowledge and prefills must reach, beside what was measured.

A loaded machine misses what an idle one reaches, so nothing fails here: the ceilings in `run` do that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from rich.table import Table

from epp.terminal.console import Console


class Target(msgspec.Struct, frozen=True):
    """One figure of one case."""

    meaning: str
    case: str
    figure: str
    bound: Literal["at least", "at most"]
    value: float


TARGETS = (
    Target("blocks a second that one core takes in", "kv_ingest", "rps", "at least", 100_000),
    Target("the same while requests are routed", "kv_live", "rps", "at least", 100_000),
    Target("a pick meanwhile, p99 ms", "kv_live_pick", "p99_ms", "at most", 10),
    Target("from event to visible meanwhile, p99 ms", "kv_live_visible", "p99_ms", "at most", 20),
    Target("10 M references, MB, by 1 M", "kv_memory", "megabytes", "at most", 1500),
    Target("10 M references, MB", "kv_memory_10m", "megabytes", "at most", 1500),
    Target("look-up of 8k tokens at 1,000 pods, p50 ms", "kv_lookup_8k_1000", "p50_ms",
           "at most", 0.3),
    Target("look-up of 128k tokens, its new tail hashed, p50 ms", "kv_lookup_128k", "p50_ms",
           "at most", 3),
    Target("from a prefill's choice to its decode, p99 ms", "prefill_200rps", "p99_ms",
           "at most", 50),
)  # fmt: skip


def show(console: Console, measured: Mapping[str, Mapping[str, Any]]) -> None:
    """Print those that were measured."""
    table = Table("must reach", "measured", "target", "")
    for each in TARGETS:
        if each.case in measured:
            value = measured[each.case][each.figure]
            met = value >= each.value if each.bound == "at least" else value <= each.value
            said = f"{each.bound} {each.value:,g}"
            table.add_row(each.meaning, f"{value:,.3g}" if value < 100 else f"{value:,.0f}", said,
                          "met" if met else "[red]missed[/red]")  # fmt: skip
    if table.row_count:
        console.print(table)
