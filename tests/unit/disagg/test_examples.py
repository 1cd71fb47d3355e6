"""The configurations in docs/disaggregation.md are ones that can be used."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from epp.build import Parts, configure
from epp.clock import ManualClock
from epp.errors import ConfigError
from epp.ledger import Ledger
from epp.pool import Pool
from epp.sim.fleet.scenario import scenario_of

DOCS = Path(__file__).parents[3] / "docs" / "disaggregation.md"
BLOCKS = re.findall(r"```yaml\n(.*?)```", DOCS.read_text(), re.DOTALL)
EXAMPLES = [each for each in BLOCKS if "kind: EndpointPickerConfig" in each]
SCENARIOS = [each for each in BLOCKS if "fleet:" in each]


def parts() -> Parts:
    return Parts(
        clock=ManualClock(), random=random.Random(1), ledger=Ledger(), pool=Pool(),
        allow_experimental=True,
    )  # fmt: skip


@pytest.mark.parametrize("text", EXAMPLES)
def test_an_example_is_one_that_can_be_used(text: str) -> None:
    loaded, pipeline = configure(text, parts())
    assert not loaded.warnings
    assert pipeline.prefiller is not None


def test_both_handlers_have_an_example() -> None:
    assert len(EXAMPLES) == 2
    assert "pair-profile-handler" in EXAMPLES[1]


def test_the_scenario_is_one_that_can_be_run() -> None:
    assert len(EXAMPLES) + len(SCENARIOS) == len(BLOCKS)
    (scenario,) = map(scenario_of, SCENARIOS)
    assert [(pods.count, pods.role) for pods in scenario.fleet] == [(4, "prefill"), (4, "decode")]


def test_two_plugins_that_run_prefills_are_refused() -> None:
    twice = EXAMPLES[0].replace(
        "- type: prefill-client", "- {type: prefill-client, name: b}\n- type: prefill-client"
    )
    with pytest.raises(ConfigError, match="one plugin may run prefills"):
        configure(twice, parts())
