"""What the benchmark of KV events tells, and its figures beside their targets; no timings."""

from __future__ import annotations

import io
import random

from rich.console import Console

from epp.bench import kv, targets
from epp.bench.run import INSIDE, LONG
from epp.collect.parse.kv_events import parse
from epp.prefix.exact.events import Removed, Stored


def test_what_is_taken_in_is_as_much_stored_as_removed():
    stored = removed = counted = 0
    for payload, blocks in kv.request(random.Random(1)):
        counted += blocks
        for event in parse(payload).events:
            stored += len(event.hashes) if isinstance(event, Stored) else 0
            removed += len(event.hashes) if isinstance(event, Removed) else 0
    assert (stored, removed, counted) == (72, 72, 144)


def test_every_target_is_of_a_case_that_there_is():
    assert {each.case for each in targets.TARGETS} <= {*INSIDE, *LONG}


def test_a_figure_is_shown_beside_its_target_if_it_was_measured():
    console = Console(width=120, record=True, file=io.StringIO())
    measured = {
        "kv_ingest": {"rps": 99_999.0}, "kv_live_pick": {"p99_ms": 9.5}, "kv_memory": {"megabytes": 600.0},
    }  # fmt: skip
    targets.show(console, measured)
    lines = [line for line in console.export_text().splitlines() if "at " in line]
    said = [(line.rsplit("│", 3)[1].strip(), line.rsplit("│", 2)[1].strip()) for line in lines]
    assert said == [
        ("at least 100,000", "missed"), ("at most 10", "met"), ("at most 1,500", "met"),
    ]  # fmt: skip


def test_memory_is_told_for_ten_million_by_a_few():
    assert kv.memory(2_000) >= 0
