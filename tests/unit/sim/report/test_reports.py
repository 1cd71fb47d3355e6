"""Comparisons, pages and reports of runs."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from xml.etree import ElementTree as ET

import msgspec
import pytest
import yaml
from rich.console import Console

from epp import cli
from epp.sim.report.drawing import Line, Plot, drawn
from epp.sim.report.seeds import compared, interval, over_seeds
from epp.sim.report.tables import difference_of, means_of
from tests.unit.sim.report.test_figures import Goals, Outcome, story, summarize

SCENARIO = """\
fleet: [{count: 2}]
traffic: {preset: chat, seconds: 20}
policy: round-robin
"""


def summary(seed: int, ttft: float):
    return summarize(Outcome("p", seed, [story(first_at=ttft)], [], 10.0, 0.0), Goals())


def test_an_interval_is_students():
    found = interval([1.0, 2.0, 3.0])
    # t(2) 4.303, s 1, n 3
    assert found.mean == 2.0
    assert found.half == pytest.approx(4.303 / 3**0.5)
    assert interval([5.0]).half == 0.0


def test_of_means_no_digit_is_cut_off_where_the_terminal_is_narrow():
    means = dict.fromkeys(("tpot_p50", "goodput", "regret"), interval([0.02221, 0.02345, 0.02153]))
    named = ["ttft_p50", "ttft_p90", "ttft_p99", "e2e_p99", "hit_rate"]
    means |= dict.fromkeys(named, interval([0.30712, 0.31431, 0.31997]))
    written = Console(file=io.StringIO(), width=100)
    written.print(means_of([("least-request", means)]))
    said = written.file.getvalue()
    # t(2) 4.303; s 0.000970 and 0.00644, n 3
    assert (said.count("0.0224"), said.count("±0.0024")) == (3, 3)
    assert (said.count("0.314"), said.count("±0.016")) == (5, 5)
    assert "…" not in said


def test_differences_are_taken_seed_by_seed():
    one = [summary(1, 1.0), summary(2, 1.5), summary(3, 0.5)]
    other = [summary(1, 1.1), summary(2, 1.61), summary(3, 0.6)]
    change = {each.name: each for each in compared(one, other)}["ttft_p50"]
    assert change.change.mean == pytest.approx(0.31 / 3)
    assert change.is_clear  # though seeds differ by far more than the scenarios
    assert not {each.name: each for each in compared(one[:1], other[:1])}["ttft_p50"].is_clear


def test_one_seed_has_no_interval():
    one, two = ([summary(seed, ttft) for seed in (1, 2)] for ttft in (1.0, 1.5))
    assert difference_of(compared(one[:1], two[:1])[0])[4] == "one seed"
    assert difference_of(compared(one, two)[0])[4] == "+0.5 to +0.5"


def test_runs_of_other_seeds_are_not_compared():
    with pytest.raises(ValueError, match="same seeds"):
        compared([summary(1, 1.0)], [summary(2, 1.0)])


def test_a_figure_that_a_run_lacks_is_left_out():
    shed = summarize(Outcome("p", 1, [story(outcome="shed")], [], 10.0, 0.0), Goals())
    assert "ttft_p50" not in over_seeds([shed, summary(2, 1.0)])
    assert "goodput" in over_seeds([shed, summary(2, 1.0)])


def test_a_drawing_is_well_formed_and_names_its_lines():
    lines = (Line("a < b", ((0.01, 0.0), (1.0, 0.5), (10.0, 1.0))),)
    root = ET.fromstring(drawn(Plot("t & u", "s", "share", lines, logarithmic=True)))
    texts = [each.text for each in root.iter("text")]
    assert "a < b" in texts
    assert {"0.01", "0.1", "1", "10"} <= set(texts)


def test_two_scenarios_are_run_compared_and_written(tmp_path: Path, capsys):
    one, other = tmp_path / "one.yaml", tmp_path / "other.yaml"
    one.write_text(SCENARIO)
    other.write_text(SCENARIO.replace("round-robin", "default"))
    page, figures, folder = tmp_path / "p.html", tmp_path / "f.json", tmp_path / "reports"
    arguments = ["sim", "run", str(one), "--compare", str(other), "--seeds", "2"]
    arguments += ["--html", str(page), "--json", str(figures), "--benchmark-report", str(folder)]
    assert cli.main(arguments) == 0
    shown = capsys.readouterr().out
    assert "ttft_p99" in shown
    told = msgspec.json.decode(figures.read_bytes())
    assert [(run["policy"], run["seed"]) for run in told["runs"]] == [
        ("round-robin", 1), ("default", 1), ("round-robin", 2), ("default", 2),
    ]  # fmt: skip
    html = page.read_text()
    assert "<svg" in html
    assert "http" not in html  # nothing is fetched
    reports = sorted(each.name for each in folder.iterdir())
    assert reports[0] == "default-seed-1.yaml"
    report = yaml.safe_load((folder / reports[0]).read_text())
    assert report["version"] == "0.2.1"
    assert report["scenario"]["load"]["native"]["config"]["simulated"] is True
    requests = report["results"]["request_performance"]["aggregate"]["requests"]
    assert requests["total"] == told["runs"][1]["all"]["requests"]


def test_a_policy_that_nobody_knows_is_named(tmp_path: Path, capsys):
    path = tmp_path / "one.yaml"
    path.write_text(SCENARIO)
    assert cli.main(["sim", "run", str(path), "--policy", "lmetrik"]) != 0
    assert "did you mean 'lmetric'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--json", "/nowhere/f.json"], "--json /nowhere/f.json: there is no folder /nowhere"),
        (["--html", "/nowhere/p.html"], "--html /nowhere/p.html: there is no folder /nowhere"),
        (["--policy", "round-robin", "--policy", "lmetrik"], "policy 'lmetrik'"),
        (["--seeds", "0"], "--seeds"),
    ],
)
def test_what_would_fail_after_the_runs_is_refused_before_them(
    flags: list[str], said: str, tmp_path: Path, capsys
):
    path = tmp_path / "one.yaml"
    path.write_text(SCENARIO)
    with contextlib.suppress(SystemExit):
        assert cli.main(["sim", "run", str(path), *flags]) != 0
    shown = capsys.readouterr()
    assert said in shown.err
    assert not shown.out  # no table: nothing was simulated


def test_reports_of_two_scenarios_with_one_policy_do_not_overwrite_each_other(tmp_path: Path):
    one, folder = tmp_path / "one.yaml", tmp_path / "reports"
    one.write_text(SCENARIO)
    arguments = ["sim", "run", str(one), "--compare", str(one), "--benchmark-report", str(folder)]
    assert cli.main(arguments) == 0
    reports = sorted(each.name for each in folder.iterdir())
    assert reports == ["round-robin-seed-1-2.yaml", "round-robin-seed-1.yaml"]


def test_two_scenarios_with_one_policy_are_told_apart_by_their_files(tmp_path: Path, capsys):
    one, other, figures = tmp_path / "one.yaml", tmp_path / "other.yaml", tmp_path / "f.json"
    for path in (one, other):
        path.write_text(SCENARIO)
    assert cli.main(["sim", "run", str(one), "--compare", str(other), "--json", str(figures)]) == 0
    told = msgspec.json.decode(figures.read_bytes())
    assert [run["policy"] for run in told["runs"]] == ["round-robin, one", "round-robin, other"]
    assert "round-robin, other" in capsys.readouterr().out
