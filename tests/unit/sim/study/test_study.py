"""The policy report: what it is made of, and how a cell is judged."""

from __future__ import annotations

from pathlib import Path

import pytest

from epp.sim.study.__main__ import main
from epp.sim.study.cells import Traces, cells, demand_for
from epp.sim.study.page import Result, finalists, page_of, verdict_of


def result(policy: str, p50: float, p90: float, p99: float, seed: int = 1) -> Result:
    return Result("one", policy, seed, p50, p90, p99, 0.5, 0.9)


def test_a_cell_is_judged_against_the_best_of_the_others_by_means_over_seeds() -> None:
    results = [
        result("best", 0.5, 2.0, 9.0), result("best", 0.7, 2.0, 11.0, seed=2),
        result("llm-d-2-2-3", 0.5, 4.0, 20.0), result("llm-d-2-2-3", 0.5, 6.0, 20.0, seed=2),
        result("lmetric", 1.0, 3.0, 8.0), result("lmetric", 1.0, 3.0, 12.0, seed=2),
        result("oracle", 0.1, 1.0, 2.0), result("oracle", 0.1, 1.0, 2.0, seed=2),
    ]  # fmt: skip
    found = verdict_of(results)
    # p99: 10 against lmetric's 10; p50: 0.6 against 0.5; p90: the default's 5 against 2. The oracle
    # is no rival.
    assert (found.p99, found.p50, found.p90_default) == pytest.approx((1.0, 1.2, 2.5))
    assert found.p90_bound == pytest.approx(5.0)
    assert found.best == "lmetric"
    # In pairs 9 - 8 and 11 - 12: Student's t for one degree of freedom is 12.706.
    assert found.pairs.mean == 0.0
    assert found.pairs.half == pytest.approx(12.706)
    assert not found.holds
    assert "**no**" in page_of(["one"], results, seeds=2, requests=10)


def test_more_seeds_go_to_ours_the_default_and_whoever_may_be_the_best() -> None:
    by_p99 = [result(f"tail-{n}", 5.0 + n, 9.0, 10.0 + n) for n in range(5)]
    by_p50 = [result(f"middle-{n}", 0.1 + n, 9.0, 90.0 + n) for n in range(3)]
    ours = [result(each, 9.0, 9.0, 99.0) for each in ("best", "best-alone", "llm-d-2-2-3")]
    ours.append(result("oracle", 0.0, 0.0, 0.0))
    assert sorted(finalists([*by_p99, *by_p50, *ours])) == [
        "best", "best-alone", "llm-d-2-2-3", "middle-0", "middle-1", "oracle", "tail-0", "tail-1", "tail-2",
        "tail-3",
    ]  # fmt: skip


def test_a_policy_that_ran_once_is_shown_and_judges_nothing() -> None:
    ours = [result("best", 1.0, 1.0, 10.0, seed=seed) for seed in (1, 2)]
    default = [result("llm-d-2-2-3", 1.0, 1.0, 10.0, seed=seed) for seed in (1, 2)]
    results = [*ours, *default, result("lucky", 0.1, 0.1, 1.0), result("oracle", 0.1, 0.1, 1.0)]
    assert verdict_of(results).p99 == 1.0
    assert "| lucky | 0.10 | 0.10 | 1.00 | 0.500 |" in page_of(
        ["one"], results, seeds=2, requests=9
    )


def test_as_good_as_the_best_holds() -> None:
    results = [
        result("best", 0.55, 1.0, 10.4), result("llm-d-2-2-3", 0.5, 1.0, 10.0),
        result("oracle", 0.5, 0.5, 9.0),
    ]  # fmt: skip
    assert verdict_of(results).holds
    page = page_of(["one"], results, seeds=1, requests=10)
    assert "| one | 1.04 | llm-d-2-2-3 | 1.10 | +0.40 ± 0.00 | 1.00 | 2.00 | yes |" in page


def test_ours_whose_replicas_tell_each_other_nothing_is_no_rival() -> None:
    names = ("best", "best-alone", "llm-d-2-2-3", "oracle")
    results = [result(each, 1.0, 1.0, 1.0 if each == "best-alone" else 5.0) for each in names]
    assert verdict_of(results).best == "llm-d-2-2-3"


def test_cells_without_their_trace_are_left_out(tmp_path: Path) -> None:
    names = [cell.name for cell in cells(Traces(tmp_path), 10)]
    assert names == ["shared prefixes, made", "agents, made", "tenants, made x6"]


def test_what_is_reported_on_is_the_second_half_of_a_trace(tmp_path: Path) -> None:
    lines = [
        f'{{"timestamp": {1000 * n}, "input_length": {600 + n}, "output_length": 5, '
        f'"hash_ids": [{n}, {100 + n}]}}'
        for n in range(20)
    ]
    (tmp_path / "conversation_trace.jsonl").write_text("\n".join(lines) + "\n")
    cell = cells(Traces(tmp_path), 6)[0]
    demand = demand_for(cell, seed=1)
    lengths = sorted(record.input_tokens for record in demand.trace.records)
    assert lengths == [610, 611, 612, 613, 614, 615]
    assert min(record.at for record in demand.trace.records) < 3.0
    other = demand_for(cells(Traces(tmp_path), 6)[0], seed=2)  # of ten records, 6 % 5 later
    assert min(record.input_tokens for record in other.trace.records) == 611


def test_a_folder_of_traces_that_is_not_there_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, gone = tmp_path / "report.md", tmp_path / "gone"
    monkeypatch.setattr("sys.argv", ["study", str(gone), "--out", str(out)])
    assert main() == 2
    assert f"there is no folder {gone}" in capsys.readouterr().err
    assert not out.exists()
