"""Published curves as demand, and the page that holds the simulator against them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from epp.errors import ConfigError
from epp.sim.calibrate.fit import Numbers
from epp.sim.fleet.story import Story
from epp.sim.study.calibration import (
    curve_to_fit,
    distance,
    jobs_of,
    parser,
    scenario_of,
    simulated,
)
from epp.sim.study.calibration_page import Curve, breaks, page_of, regime
from epp.sim.study.measured import (
    APART_SECONDS,
    Point,
    Setup,
    demand_of,
    points,
    read_benchmarks,
)

SETUP = Setup(
    pods=2, model="Qwen/Qwen3-32B", gpu="H100", tp=2, kv_tokens_per_pod=300_000, arrival="constant",
    groups=2, prompts_per_group=2, system_tokens=600, question_tokens=120, output_tokens=10,
    warmup=(2.0, 2.0), stages_rate_duration=((1.0, 3.0), (2.0, 3.0)),
)  # fmt: skip


def test_every_stage_asks_the_shuffled_prompts_from_the_first_one_on() -> None:
    records = demand_of(SETUP, (), seed=1).trace.records
    assert [each.at for each in records] == [
        0, 0.5, 1, 1.5,
        *(APART_SECONDS + at for at in (0, 1, 2)),
        *(2 * APART_SECONDS + at for at in (0, 0.5, 1, 1.5, 2, 2.5)),
    ]  # fmt: skip
    prompts = [each.runs for each in records]
    assert len(set(prompts[:4])) == 4
    assert prompts[4:7] == prompts[:3]
    assert prompts[7:] == [*prompts[:4], *prompts[:2]]


def test_prompts_share_the_blocks_of_their_group_and_no_other() -> None:
    records = demand_of(SETUP, (), seed=1).trace.records[:4]
    assert {each.input_tokens for each in records} == {720}
    shared = {each.runs[0] for each in records}
    assert len(shared) == 2
    assert {count for _, count in shared} == {600 // SETUP.block_tokens}
    assert len({each.runs[1] for each in records}) == 4


def test_requests_come_as_fast_as_they_were_sent_when_that_is_told() -> None:
    told = (Point(1.0, 0, 0, 0, req_s=0.5), Point(2.0, 0, 0, 0))
    records = demand_of(SETUP, told, seed=1).trace.records
    assert [each.at - APART_SECONDS for each in records[4:7]] == [0, 2, 4]
    assert records[8].at - records[7].at == 0.5


def test_a_stage_counts_answers_from_its_first_request_to_its_last_answer() -> None:
    def story(at: float, first: float, end: float, outcome: str = "ok") -> Story:
        begun = Story("id", "", "", 0, 0, APART_SECONDS + at, 720, 10, 0)
        begun.first_at, begun.ended_at = APART_SECONDS + first, APART_SECONDS + end
        begun.outcome = outcome
        return begun

    stories = [story(1, 2, 5), story(2, 5, 11), story(3, 3.1, 99, outcome="shed")]
    one, empty = points(SETUP, stories).values()
    assert one == Point(1.0, 20 / 10, 1.0, 2.0)
    assert empty.out_tok_s == 0.0


def test_a_file_without_benchmarks_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "anchors.json"
    path.write_bytes(msgspec.json.encode({"note": "nothing here"}))
    with pytest.raises(ConfigError, match="no member has `setup` and `per_qps`"):
        read_benchmarks([path])
    curves = {"random": [msgspec.structs.asdict(Point(1.0, 2.0, 3.0, 4.0))]}
    path.write_bytes(
        msgspec.json.encode({"mine": {"setup": SETUP, "per_qps": curves}, "other": [1]})
    )
    assert read_benchmarks([path])["mine"].per_qps["random"][0].ttft_mean_s == 4.0


def test_a_fleet_is_that_of_the_setup() -> None:
    pods = scenario_of(SETUP).fleet[0]
    assert (pods.profile, pods.count, pods.kv_tokens) == ("qwen3-32b-h100-tp2", 2, 300_000)
    other = msgspec.structs.replace(SETUP, model="meta-llama/Llama-3.1-8B-Instruct", tp=1)
    assert scenario_of(other).fleet[0].profile == "llama-3.1-8b-h100"
    with pytest.raises(ConfigError, match="not known"):
        scenario_of(msgspec.structs.replace(SETUP, gpu="abacus"))


def test_a_fleet_breaks_where_it_stays_broken() -> None:
    def curve(*p90s: float) -> list[Point]:
        return [Point(float(i), 1.0, p90, 1.0) for i, p90 in enumerate(p90s, start=1)]

    assert breaks(curve(1, 12, 2, 40, 50)) == 4
    assert breaks(curve(1, 2, 3)) is None
    kinds = [Point(1, 1, 2, 0.5), Point(1, 1, 9, 4), Point(1, 1, 30, 9)]
    assert [regime(each) for each in kinds] == ["quiet", "strained", "broken"]


def test_the_page_tells_errors_of_curves_that_were_not_fitted() -> None:
    measured = (Point(1.0, 100.0, 0.5, 0.3), Point(2.0, 200.0, 20.0, 10.0))
    runs = (
        (Point(1.0, 90.0, 0.4, 0.2), Point(2.0, 200.0, 30.0, 12.0)),
        (Point(1.0, 110.0, 0.4, 0.2), Point(2.0, 240.0, 30.0, 12.0)),
    )
    curves = [Curve("b/x", "random", measured, runs[:1]), Curve("b/y", "random", measured, runs)]
    page = page_of(curves, "b/x", Numbers(1.1, 1.2, 0.004, 0.00002, 0.2))
    assert "| b/x (fitted) | `random` | 5.0% | 5.0% to 5.0% | -10% | 2 | 2 |" in page
    assert "| b/y | `random` | 5.0% | 5.0% to 15.0% | +10% | 2 | 2 |" in page
    assert "not fitted: 5.0%" in page
    assert "| b/y | quiet | 1 | -0.10 s | -0.10 s |" in page
    assert "| b/y | broken | 1 | +20%, without sign 20% | +50%, without sign 50% |" in page
    assert "b, measured: x 150, y 150" in page


def test_the_distance_of_a_curve_to_itself_is_zero_and_counts_both_figures() -> None:
    curve = [Point(1.0, 100.0, 0.5, 0.3)]
    assert distance(curve, curve) == 0
    e = 2.718281828459045
    assert distance(curve, [Point(1.0, 100.0 * e, 0.5, 0.3)]) == pytest.approx(0.5**0.5)


def test_a_file_s_policies_are_named_in_general_for_one_benchmark_or_by_whoever_asks(
    tmp_path: Path,
) -> None:
    path = tmp_path / "anchors.json"
    curve = [msgspec.structs.asdict(Point(1.0, 2.0, 3.0, 4.0))]
    names = ("precise-scheduling", "random-scheduling", "ours")
    told = {"setup": SETUP, "per_qps": dict.fromkeys(names, curve)}
    path.write_bytes(msgspec.json.encode({"llmd_73_capacity": told, "mine": told}))
    jobs = jobs_of(parser().parse_args([str(path), "--policy", "ours=p2c"]))
    assert {name: job.policy for name, job in jobs.items()} == {
        "llmd_73_capacity/precise-scheduling": "llm-d-2-2-3-exact",
        "llmd_73_capacity/random-scheduling": "random",
        "llmd_73_capacity/ours": "p2c",
        "mine/precise-scheduling": "llm-d-2-1-1-exact",
        "mine/random-scheduling": "random",
        "mine/ours": "p2c",
    }
    with pytest.raises(ConfigError, match=r"llmd_73_capacity/ours: .*--policy ours=POLICY"):
        jobs_of(parser().parse_args([str(path)]))


def curves(*rates: float) -> list[dict[str, float]]:
    return [msgspec.structs.asdict(Point(rate, 20.0, 0.5, 0.4)) for rate in rates]


def write(path: Path, **benchmarks: object) -> str:
    path.write_bytes(msgspec.json.encode(benchmarks))
    return str(path)


def test_one_file_s_curve_is_fitted_and_another_file_s_fleet_predicted(tmp_path: Path) -> None:
    """The other one has more pods, other rates, a model without profile and one policy only."""
    known = write(tmp_path / "a.json", mine={"setup": SETUP, "per_qps": {"random": curves(1, 2)}})
    setup = msgspec.structs.replace(SETUP, pods=16, model="gpt-oss-120b", gpu="H200", tp=1)
    other = {"setup": setup, "per_qps": {"default-scheduling": curves(2)}}
    kept = write(tmp_path / "b.json", kept=other)
    with pytest.raises(ConfigError, match=r"kept: .*gpt-oss-120b-h200.*--profile kept=PROFILE"):
        jobs_of(parser().parse_args([known, kept]))
    jobs = jobs_of(parser().parse_args([known, kept, "--profile", "kept=llama-3.1-8b-h200"]))
    assert list(jobs) == ["mine/random", "kept/default-scheduling"]
    assert curve_to_fit(jobs, "") == "mine/random"
    assert curve_to_fit(jobs, "kept/default-scheduling") == "kept/default-scheduling"
    with pytest.raises(ConfigError, match="no curve 'kept/random' to fit; there are mine/random"):
        curve_to_fit(jobs, "kept/random")
    assert jobs["kept/default-scheduling"].scenario.fleet[0].count == 16
    found = simulated(jobs["kept/default-scheduling"])
    assert [point.qps for point in found] == [2]  # what was measured, and nothing else
    assert found[0].out_tok_s > 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"setup": {}}, r"kept: Object missing required field `pods`"),
        ({"setup": {"pods": 0}}, r"kept: Expected `int` >= 1 - at `\$.setup.pods`"),
        ({"setup": {"arrival": "bursts"}}, r"kept: Invalid enum value 'bursts'"),
        ({"setup": {"stages_rate_duration": [[1, 3], [1, 4]]}}, "has 1 requests a second twice"),
        ({"setup": {"stages_rate_duration": []}}, "`setup.stages_rate_duration` has no stage"),
        ({"per_qps": {"random": []}}, "`per_qps.random` has no stage"),
        ({"per_qps": {"random": curves(1, 7)}}, "7 requests a second, which is none of .*: 1, 2"),
        ({"per_qps": {"random": curves(1, 1)}}, "`per_qps.random` has 1 requests a second twice"),
        ({"per_qps": {"random": [{"qps": 1}]}}, "missing required field `out_tok_s`"),
        ({"per_qps": None}, "missing required field `per_qps`"),
        ({"per_qps": {"random": [{**curves(1)[0], "out_tok_s": 0}]}}, "`out_tok_s` 0 at 1 "),
    ],
)
def test_what_lacks_in_a_file_is_named(
    change: dict[str, object], message: str, tmp_path: Path
) -> None:
    setup = msgspec.to_builtins(SETUP)
    told = {"setup": setup, "per_qps": {"random": curves(1, 2)}}
    told |= {key: value for key, value in change.items() if key != "setup"}
    if "setup" in change:
        told["setup"] = {**setup, **change["setup"]} if change["setup"] else {}
    told = {key: value for key, value in told.items() if value is not None}
    with pytest.raises(ConfigError, match=message) as error:
        read_benchmarks([Path(write(tmp_path / "kept.json", kept=told))])
    assert "kept.json" in str(error.value)


def test_a_benchmark_is_in_one_file_only(tmp_path: Path) -> None:
    told = {"setup": SETUP, "per_qps": {"random": curves(1)}}
    paths = [Path(write(tmp_path / name, mine=told)) for name in ("a.json", "b.json")]
    with pytest.raises(ConfigError, match=r"b.json: mine: an earlier file has it"):
        read_benchmarks(paths)


def test_a_policy_or_profile_that_is_told_without_its_name_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", mine={"setup": SETUP, "per_qps": {"random": curves(1)}})
    with pytest.raises(ConfigError, match="'p2c' is not told as NAME=VALUE"):
        jobs_of(parser().parse_args([path, "--policy", "p2c"]))
