"""Logs of two GPUs with the same host's numbers: each is predicted from the other."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from epp.errors import ConfigError
from epp.sim.calibrate.fit import Numbers
from epp.sim.fleet.scenario import read_scenario, scenario_of
from epp.sim.study.logs import Fit, fitted, read_logs, section_of
from tests.unit.sim.calibrate.made import answered, busy

TRUE = Numbers(1.5, 1.3, 0.004, 0.0001, 0.02)
FLEET = "fleet: [{count: 1, profile: llama-3.1-8b-%s}]\npolicy: random\n"


def measured(folder: Path, gpu: str) -> str:
    """Write a fleet and the log of what its engines, with `TRUE`, would do; return it as an argument."""
    (folder / f"{gpu}.yaml").write_text(FLEET % gpu)
    lines = [
        msgspec.json.encode(
            {"arrival_s": each.at, "input_tokens": each.input_tokens,
             "output_tokens": each.output_tokens, "ttft_s": each.ttft, "e2e_s": each.duration}
        ).decode()
        for each in answered(scenario_of(FLEET % gpu), busy(110), TRUE).records
    ]  # fmt: skip
    (folder / f"{gpu}.jsonl").write_text("\n".join(lines) + "\n")
    return f"{folder}/{gpu}.yaml={folder}/{gpu}.jsonl"


@pytest.fixture(scope="module")
def fits(tmp_path_factory: pytest.TempPathFactory) -> list[Fit]:
    folder = tmp_path_factory.mktemp("logs")
    return fitted(read_logs([measured(folder, "h100"), measured(folder, "a100")]), 30)


def test_each_log_predicts_the_other_within_15_percent(fits: list[Fit]) -> None:
    assert [each.name for each in fits] == ["h100", "a100"]
    for each in fits:
        assert abs(each.before.all.e2e_p50) > 0.15  # so that something was there to be found
        for of in each.found.values():
            assert max(map(abs, (of.all.ttft_p50, of.all.ttft_p90))) < 0.15
            assert max(map(abs, (of.all.e2e_p50, of.all.e2e_p90, of.makespan))) < 0.15
        assert each.numbers.prefill == pytest.approx(TRUE.prefill, rel=0.05)


def test_the_page_tells_both_ways_what_was_found_and_what_speaks_against_it(
    fits: list[Fit],
) -> None:
    other = fits[1].found["h100"]
    bad = msgspec.structs.replace(
        fits[1],
        found={**fits[1].found, "h100": msgspec.structs.replace(
            other, all=msgspec.structs.replace(other.all, ttft_p90=0.27))},
        doubts=["a100, h100 predicted: too slow"],
    )  # fmt: skip
    page = section_of([fits[0], bad])
    assert "| h100 | h100 (fitted) | 110 | " in page
    assert "| h100 | a100 | 110 | " in page
    assert "| a100 | h100 | 110 | " in page
    assert page.count("| nothing, the profile as it is |") == 2
    assert "that was not fitted: 27.0%." in page
    assert "Warning: a100, h100 predicted: too slow." in page


@pytest.mark.parametrize(
    ("told", "why"),
    [
        (["fleet.yaml"], "'fleet.yaml' is not told as SCENARIO.yaml=LOG"),
        (["nowhere.yaml=log.csv"], r"--log nowhere.yaml=log.csv: nowhere.yaml: .*No such file"),
    ],
)
def test_logs_that_cannot_be_used_are_named(told: list[str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        read_logs(told)


def test_a_fleet_is_told_once(tmp_path: Path) -> None:
    told = measured(tmp_path, "h100")
    with pytest.raises(ConfigError, match="h100 is there twice"):
        read_logs([told, told])


def test_the_fleets_that_the_report_names_can_be_read() -> None:
    folder = Path(__file__).parents[4] / "docs/fleets"
    fleets = {path.stem: read_scenario(str(path)).fleet[0] for path in folder.glob("*.yaml")}
    assert fleets["rtx-4090"].kv_tokens == 2588 * 16  # blocks that vLLM told of
    assert fleets["rtx-pro-6000"].max_num_seqs == 128
