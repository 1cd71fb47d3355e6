"""``epp top``: what it writes, from answers made by hand."""

from __future__ import annotations

import io

import msgspec
from rich.console import Console

from epp import cli
from epp.commands import top
from epp.page import live

COLUMNS = list(live.COLUMNS)
BUSY = ["pod-1", "10.0.0.1:8000", "ready", 5, 2, 0.25, 3, 1700, 2.0, 0.031, 0.8, 0.5]
UNKNOWN = ["pod-0", "10.0.0.2:8000", "stale", None, None, None, 1, 0, 0.0, None, None, None]


def answer(**facts: object) -> dict[str, object]:
    return {
        "version": "1", "pool": "llama", "ready": True, "summary": {}, "in_flight": 4,
        "states": {"ready": 1, "stale": 1, "draining": 0}, "history": {},
        "columns": COLUMNS, "pods": [BUSY, UNKNOWN], **facts,
    }  # fmt: skip


def written(view: top.View | None = None, **facts: object) -> list[str]:
    view = view or top.View(width=140)
    console = Console(file=io.StringIO(), width=view.width)
    made = msgspec.convert(answer(**facts), top.Answer)
    for part in top.render(made, view):
        console.print(part)
    return [" ".join(line.split()) for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]


def test_a_pods_line_holds_its_numbers() -> None:
    assert "pod-1 ready 5 2 25.0% 3 1,700 2.0 3.1% 80.0% 0.5 s" in written()


def test_what_is_not_measured_is_a_dash_never_a_zero() -> None:
    assert "pod-0 stale – – – 1 0 0.0 – – –" in written()


def test_a_summary_without_numbers_says_so() -> None:
    lines = written()
    for name in ("requests/s", "errors", "prefix hit rate", "time to first byte"):
        assert f"{name} not measured" in lines


def test_a_summary_tells_rates_and_percentiles() -> None:
    summary = {
        "requests_per_second": 1234.56, "error_share": 0.0, "hit_rate": 0.5,
        "engine_hit_rate": 0.47, "ttft_p50": 0.0823, "ttft_p99": 1.5,
        "ttft_waiting": 0.0, "ttft_picker": 0.0003, "ttft_engine": 0.08,
        "decision_p50": 0.00012, "decision_p99": 0.0009,
    }  # fmt: skip
    lines = written(summary=summary)
    assert "requests/s 1,234.6" in lines
    assert "errors 0.0%" in lines
    assert "prefix hit rate 50.0% (engines: 47.0%)" in lines
    assert "time to first byte p50 82.3 ms, p99 1.50 s" in lines
    assert "its parts, mean waiting 0 ms, picker 0.3 ms, engine 80 ms" in lines
    assert "time of a decision p50 0.12 ms, p99 0.9 ms" in lines


def test_the_head_tells_the_pool_and_the_states_there_are() -> None:
    assert written()[0] == "pool llama ready pods: 1 ready, 1 stale in flight: 4"
    assert written(ready=False)[0].startswith("pool llama not ready")


def test_pods_are_sorted_by_name_or_from_the_largest_number() -> None:
    pods = [dict(zip(COLUMNS, pod, strict=True)) for pod in (BUSY, UNKNOWN)]
    assert [pod["name"] for pod in top.ordered(pods, "name")] == ["pod-0", "pod-1"]
    assert [pod["name"] for pod in top.ordered(pods, "running")] == ["pod-1", "pod-0"]
    assert [pod["name"] for pod in top.ordered(pods, "in_flight")] == ["pod-1", "pod-0"]
    assert [pod["name"] for pod in top.ordered(pods, "state")] == ["pod-1", "pod-0"]


def test_pods_that_do_not_fit_are_counted() -> None:
    lines = written(top.View(rows=1, sort="running"))
    assert any(line.startswith("pod-1") for line in lines)
    assert not any(line.startswith("pod-0") for line in lines)
    assert "1 more; --sort chooses which come first" in lines


def test_a_narrow_terminal_cuts_names_and_no_numbers() -> None:
    long = ["a-pod-with-a-very-long-name-in-a-narrow-terminal", *BUSY[1:]]
    line = written(top.View(width=80), pods=[long])[-1]
    assert line.startswith("a-pod-with")
    assert line.endswith("… ready 5 2 25.0% 3 2.0 3.1% 80.0%")


def test_a_line_of_blocks_has_blanks_where_nothing_was_measured() -> None:
    assert top.line([0.0, None, 7.0, 3.5]) == "▁ █▅"
    assert top.line([0.5], most=1.0) == "▅"
    assert top.line([]) == ""
    assert top.line([0.0]) == "▁"


def test_it_knows_the_columns_of_the_page_and_sorts_by_each() -> None:
    assert set(top.HEADS) == set(COLUMNS) - {"address"}
    for column in top.HEADS:
        parsed = cli._parser().parse_args(["top", "--sort", column])
        assert parsed.sort == column
