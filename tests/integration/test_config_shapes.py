"""The shapes of configuration that people run: each loads, builds and picks as it says."""

from __future__ import annotations

import random

import pytest
import yaml

from epp import headers
from epp.build import Parts, configure
from epp.clock import ManualClock
from epp.ledger import Ledger
from epp.pool import Pool
from tests.support.replayed import CONFIGS, Replay, replay

D1, D2, X, P1, P2, B = (f"10.0.0.{n}:8000" for n in range(1, 7))
ALL = {D1, D2, X, P1, P2, B}
SHAPES = sorted(path.stem for path in (CONFIGS / "shapes").glob("*.yaml"))


def shape(name: str) -> str:
    return (CONFIGS / "shapes" / f"{name}.yaml").read_text()


def build(text: str) -> None:
    parts = Parts(
        clock=ManualClock(), random=random.Random(), ledger=Ledger(), pool=Pool(),
        allow_experimental=True,
    )  # fmt: skip
    configure(text, parts)


def test_the_default_shape_uses_the_whole_pool_and_says_nothing() -> None:
    found = replay(shape("default"))
    assert found.destinations == ALL
    assert found.disaggregated == 0
    assert found.warnings == ()


def test_no_configuration_at_all_uses_the_whole_pool_and_says_nothing() -> None:
    for nothing in (None, "", "  \n", "# only a comment\n", "---\n"):
        found = replay(nothing)
        assert found.destinations == ALL
        assert found.warnings == ()


def test_the_disaggregated_shape_decodes_on_decoders_and_prefills_on_prefillers() -> None:
    found = replay(shape("disaggregated"))
    assert found.destinations == {D1, D2, X, B}
    prefillers = {named[headers.PREFILLER] for _, named in found.picks if named}
    assert prefillers == {P1, P2, B}
    assert 0 < found.disaggregated < len(found.picks)  # what is cached stays


def test_the_flow_control_shape_picks_and_says_that_nothing_waits() -> None:
    found = replay(shape("flow-control"))
    assert found.destinations == ALL
    gate, policy = found.warnings
    assert "flow control is not supported yet" in gate
    assert policy.startswith("plugin 'soft-reflective-ceiling-policy' is ignored")


def test_the_recommended_shape_stays_with_the_prefix() -> None:
    found = replay(shape("recommended"))
    assert found.destinations == ALL
    assert found.warnings == ()
    without = replay(shape("recommended").replace("- pluginRef: prefix-cache-affinity-filter", ""))
    assert found.picks != without.picks


def test_the_precise_shape_is_built_as_it_is_and_picks_as_its_twin_without_events() -> None:
    build((CONFIGS / "precise.yaml").read_text())
    assert replay(shape("precise-as-approximate")).destinations == ALL


@pytest.mark.parametrize("name", SHAPES)
def test_the_order_of_plugins_does_not_matter(name: str) -> None:
    raw = yaml.safe_load(shape(name))
    raw["plugins"].reverse()
    assert replay(yaml.safe_dump(raw)).picks == replay(shape(name)).picks


@pytest.mark.parametrize("name", SHAPES)
def test_json_is_read_like_yaml(name: str) -> None:
    as_json = yaml.safe_dump(yaml.safe_load(shape(name)), default_flow_style=True)
    found: Replay = replay(as_json)
    assert found == replay(shape(name))
