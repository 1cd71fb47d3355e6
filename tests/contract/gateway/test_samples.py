"""The samples in ``gateway/`` are what their first line's command prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from epp import cli

FOLDER = Path(__file__).parents[3] / "gateway"
SAMPLES = sorted(FOLDER.glob("*.yaml"), key=lambda sample: sample.stem)


def test_there_is_a_sample_of_each_way_to_ask_and_to_route() -> None:
    names = [sample.stem for sample in SAMPLES]
    assert names == [
        "envoy-direct", "envoy-lean", "envoy-lean-override-host", "envoy-stock",
        "envoy-stock-override-host",
    ]  # fmt: skip


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.stem)
def test_a_sample_is_what_its_command_prints(
    sample: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, _, rest = sample.read_text().partition("\n")
    command = first.removeprefix("# ").split()
    assert command[:2] == ["epp", "gateway"]
    assert cli.main(command[1:]) == 0
    assert capsys.readouterr().out == rest
