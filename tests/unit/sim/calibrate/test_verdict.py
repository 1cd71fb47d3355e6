"""What a calibration says of itself: errors by class, how sure its numbers are, what speaks against it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from epp.cli import main
from epp.errors import ConfigError
from epp.recording.record import Record
from epp.sim.calibrate.certainty import Interval, intervals
from epp.sim.calibrate.fit import Numbers, corrected, fit
from epp.sim.calibrate.measured import demand_measured
from epp.sim.calibrate.quality import Errors, Pair, Quality, quality, residuals
from epp.sim.calibrate.verdict import doubts_of, doubts_of_fit
from epp.sim.fleet.run import run
from epp.sim.fleet.scenario import scenario_of
from epp.sim.fleet.story import Story
from epp.traffic.trace import Trace
from tests.unit.sim.calibrate.made import answered, busy

FLEET = "fleet: [{count: 1, profile: llama-3.1-8b-h100, block_tokens: 16}]\npolicy: random\n"
SCENARIO = scenario_of(FLEET)
TRUE = Numbers(1.5, 1.3, 0.004, 0.0001, 0.02)
FINE = Errors(200, 0.01, 0.02, 0.02, 0.01, 0.01, -0.02, 0.02)
SURE = {"prefill": Interval(0.9, 1.1), "decode": Interval(0.8, 1.2)}


def alike(count: int) -> list[Record]:
    """The same prompt again and again, each alone: prefill looks like any other wait."""
    return [Record(at=5.0 * i, input_tokens=500, output_tokens=20) for i in range(count)]


def write(path: Path, trace: Trace, slower: float = 1.0) -> str:
    """Write a plain log of it."""
    lines = ["arrival_s,input_tokens,output_tokens,ttft_s,e2e_s,class"]
    lines += [
        f"{each.at},{each.input_tokens},{each.output_tokens},{(each.ttft or 0) * slower},"
        f"{(each.duration or 0) * slower},{each.business}"
        for each in trace.records
    ]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_errors_are_of_simulated_over_measured_in_all_and_by_class() -> None:
    def pair(i: int, name: str, off: float) -> Pair:
        story = Story("x", name, "", i, 0, float(i), 10, 2, 0)
        story.first_at, story.ended_at, story.outcome = i + 2 * off, i + 6 * off, "ok"
        return Pair(
            Record(at=float(i), input_tokens=10, output_tokens=2, business=name, ttft=2.0,
                   duration=6.0),
            story,
        )  # fmt: skip

    pairs = [pair(i, "slow", 1.2) for i in range(40)]
    assert residuals(pairs) == pytest.approx([0.1823] * 30, abs=1e-4)  # the logarithm of 1.2


def test_classes_are_told_apart() -> None:
    trace = answered(SCENARIO, busy(60), TRUE)
    records = tuple(
        msgspec.structs.replace(each, ttft=(each.ttft or 0) * 2, duration=(each.duration or 0) * 2)
        if each.business == "short" else each
        for each in trace.records
    )  # fmt: skip
    found = quality(corrected(SCENARIO, TRUE), demand_measured(Trace(records, 16)))
    assert list(found.classes) == ["long", "short"]
    assert found.classes["long"].e2e_p50 == pytest.approx(0.0, abs=1e-9)
    assert found.classes["short"].e2e_p50 == pytest.approx(-0.5)
    assert found.classes["short"].ttft_mape == pytest.approx(0.5)
    assert (found.classes["short"].requests, found.all.requests) == (20, 60)


def test_a_fleet_that_cannot_answer_is_no_comparison() -> None:
    tiny = scenario_of(FLEET.replace("block_tokens", "kv_tokens: 256, block_tokens"))
    with pytest.raises(ConfigError, match=r"answers 0 of 40 measured requests.*too_long.*kv_tok"):
        quality(tiny, demand_measured(answered(SCENARIO, busy(40), TRUE)))


def test_numbers_of_a_busy_time_are_sure_and_hold_what_is_true() -> None:
    demand = demand_measured(answered(SCENARIO, busy(120), TRUE))
    found = intervals(SCENARIO, demand, TRUE, 0.0)
    assert list(found) == list(Numbers._fields)
    for name in ("prefill", "decode"):
        assert found[name].low < getattr(TRUE, name) < found[name].high
        assert found[name].spread < 0.5


def test_numbers_of_requests_that_are_all_alike_are_not_identified() -> None:
    demand = demand_measured(answered(SCENARIO, alike(120), TRUE))
    known = intervals(SCENARIO, demand, TRUE, 0.0)
    doubts = doubts_of_fit(quality(corrected(SCENARIO, TRUE), demand), known)
    assert [each.split(":")[0] for each in doubts] == [
        "prefill is not identified", "decode is not identified",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "doubt"),
    [
        ({}, ""),
        ({"ttft_p90": 0.149}, ""),
        ({"ttft_p90": -0.151}, "off by more than 15%: TTFT p90 -15.1%"),
        ({"e2e_p50": 0.2, "e2e_mape": 0.16}, "off by more than 15%: E2E p50 +20.0%, E2E MAPE 16.0%"),
        ({"requests": 99}, "few requests: p90 of 99 rests on 9; take 100 at least"),
    ],
)  # fmt: skip
def test_what_speaks_against_a_fit(change: dict[str, float], doubt: str) -> None:
    errors = msgspec.structs.replace(FINE, **change)
    found = Quality(all=errors, classes={}, makespan=0.0, lost=0, loss=0.1)
    assert doubts_of_fit(found, SURE) == ([doubt] if doubt else [])


def test_classes_and_lost_requests_speak_against_it_but_not_a_handful() -> None:
    bad = msgspec.structs.replace(FINE, e2e_p90=0.5)
    few = msgspec.structs.replace(bad, requests=29)
    found = Quality(all=FINE, classes={"chat": bad, "rare": few}, makespan=0.0, lost=3, loss=0.1)
    assert doubts_of(found) == [
        "off by more than 15% in class chat: E2E p90 +50.0%",
        "3 requests were answered when measured, and not when simulated",
    ]


def test_a_number_of_which_a_log_tells_nothing_stays_near_what_is_usual() -> None:
    """Prefill and seconds a request are one wait here: left free, prefill went to 2.7."""
    found = fit(SCENARIO, demand_measured(answered(SCENARIO, alike(60), TRUE)), calls=40)
    assert found.after.loss < 0.01
    assert 0.7 < found.numbers.prefill < 1.3


def test_a_log_worked_out_by_hand_gives_prefill_and_step_back() -> None:
    """Requests alone on a H100: what the table's line says, prefill 1.4 and 15 ms a step, 30 ms each."""
    records = []
    for i in range(120):
        prompt, answer = 200 + 1999 * i % 7800, 20 + 37 * i % 200
        ttft = 0.030 + 0.015 + 1.4 * (20.2e-6 * prompt + 0.79e-9 * prompt * prompt / 2)
        records.append(
            Record(at=9.0 * i, input_tokens=prompt, output_tokens=answer, ttft=ttft,
                   duration=ttft + 0.015 * (answer - 1))
        )  # fmt: skip
    found = fit(SCENARIO, demand_measured(Trace(tuple(records), 16)))
    assert found.numbers.prefill == pytest.approx(1.4, rel=0.03)
    assert found.numbers.request == pytest.approx(0.030, abs=0.003)
    numbers = found.numbers
    alone = 0.0064 * numbers.decode + numbers.step + 0.000011 * numbers.decode + numbers.sequence
    assert alone == pytest.approx(0.015, rel=0.03)
    assert found.after.all.e2e_mape < 0.03


def test_cached_tokens_without_blocks_are_hits_after_the_first() -> None:
    records = tuple(
        Record(at=20.0 * i, input_tokens=4000, output_tokens=4, cached_tokens=3200, ttft=1.0,
               duration=2.0)
        for i in range(30)
    )  # fmt: skip
    stories = run(SCENARIO, demand=demand_measured(Trace(records, 512))).stories
    found = [story.cached_tokens for story in sorted(stories, key=lambda story: story.at)]
    assert found == [0] + [3200] * 29


def test_a_made_log_gives_its_constants_back_and_says_that_it_is_good(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "fleet.yaml").write_text(FLEET)
    log = write(tmp_path / "log.csv", answered(SCENARIO, busy(120), TRUE))
    out = tmp_path / "found.json"
    assert main(["sim", "calibrate", str(tmp_path / "fleet.yaml"), log, "--runs", "45",
                 "--check", log, "--json", str(out)]) == 0  # fmt: skip
    said = capsys.readouterr().out
    assert "# good: within 15%" in said
    assert "#   class short: 40 requests: TTFT p50 " in said
    found = msgspec.json.decode(out.read_bytes())
    assert (found["good"], found["warnings"]) == (True, [])
    numbers = found["numbers"]
    assert numbers["prefill"] == pytest.approx(TRUE.prefill, rel=0.03)
    assert numbers["decode"] == pytest.approx(TRUE.decode, rel=0.3)
    assert numbers["sequence"] == pytest.approx(TRUE.sequence, rel=0.3)
    empty = 0.0064 * numbers["decode"] + numbers["step"]  # a step: decode and step trade a little
    assert empty == pytest.approx(0.0064 * TRUE.decode + TRUE.step, rel=0.04)
    for name in ("prefill", "decode"):
        each = found["intervals"][name]
        assert each["low"] < getattr(TRUE, name) < each["high"]
    assert found["after"]["all"]["ttft_mape"] < 0.03
    assert found["check"]["all"] == found["after"]["all"]
    assert found["fleet"]["correction"]["prefill"] == found["numbers"]["prefill"]


def test_a_check_that_fails_is_told_by_a_warning_and_the_exit_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "fleet.yaml").write_text(FLEET)
    trace = answered(SCENARIO, busy(120), TRUE)
    log = write(tmp_path / "log.csv", trace)
    slow = write(tmp_path / "slow.csv", trace, slower=1.5)
    out = tmp_path / "found.json"
    assert main(["sim", "calibrate", str(tmp_path / "fleet.yaml"), log, "--runs", "24",
                 "--check", slow, "--json", str(out)]) == 1  # fmt: skip
    told = msgspec.json.decode(out.read_bytes())
    assert told["good"] is False
    assert all(each.startswith(f"{slow}: off by more than 15%") for each in told["warnings"])
    assert "15%: TTFT p50 -3" in told["warnings"][0]  # two thirds, less one
    assert f"# WARNING: {told['warnings'][0]}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("arrival_s,input_tokens,output_tokens,ttft_s,e2e_s\n0,9,1,2,1\n", "before its first"),
        ("arrival_s,input_tokens,output_tokens\n0,9,1\n", "0 of 1 requests tell TTFT and dura"),
        ("a,b\n1,2\n", "its format cannot be told"),
        ("", "there is nothing in it"),
    ],
)
def test_what_is_no_measurement_is_refused_by_name(
    text: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "fleet.yaml").write_text(FLEET)
    log = tmp_path / "log.csv"
    log.write_text(text)
    assert main(["sim", "calibrate", str(tmp_path / "fleet.yaml"), str(log)]) == 2
    said = capsys.readouterr().err
    assert "log.csv" in said
    assert why in said
