"""Problems that endpoint pickers had in the field with loading their configuration."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from epp.build import configure
from epp.catalog import NOT_YET
from epp.commands.check import check
from epp.errors import ConfigError
from epp.schedule.scorers import SCORERS
from tests.support.replayed import ANY_PARTS, CONFIGS, replay

ROOT = Path(__file__).parents[2]

NEEDS: dict[str, dict[str, Any]] = {
    "header-label-affinity-scorer": {"headerName": "x-tier", "labelKey": "tier"},
    "endpoint-attribute-scorer": {
        "attributeKey": "gpu",
        "algorithm": {"type": "linear_lower_is_better", "adaptiveRange": {}},
    },
}
"""Parameters of the scorers that cannot do without."""


@pytest.mark.parametrize("scorer", [each.type for each in SCORERS])
def test_b188_a_scorer_enabled_alone_starts_and_picks(scorer: str) -> None:
    """Start-up failed when a scorer was enabled without its data producer (llm-d-router #2406)."""
    spec = {"type": scorer, "parameters": NEEDS.get(scorer, {})}
    assert replay(yaml.safe_dump({"plugins": [spec]})).destinations


@pytest.mark.parametrize(
    ("scorer", "missing"),
    [
        ("header-label-affinity-scorer", "headerName"),
        ("endpoint-attribute-scorer", "attributeKey"),
        ("latency-scorer", "latency prediction is not supported yet"),
    ],
)
def test_b188_or_says_what_is_missing(scorer: str, missing: str) -> None:
    with pytest.raises(ConfigError, match=rf"{missing}.* - at `\$\.plugins\[0\]"):
        configure(f"plugins: [{{type: {scorer}}}]", ANY_PARTS)


def test_b188_a_scorer_that_reads_from_nobody_is_refused() -> None:
    text = "plugins: [{type: SCORER, parameters: {prefixMatchInfoProducerName: no-such}}]"
    for scorer in ("prefix-cache-scorer", "no-hit-lru-scorer", "token-load-scorer"):
        with pytest.raises(ConfigError, match=r"no plugin is named 'no-such'.*ProducerName`"):
            configure(text.replace("SCORER", scorer), ANY_PARTS)


def test_b188_a_scorer_that_reads_from_an_ignored_plugin_is_told_of() -> None:
    name = "burst-prefix-cache-producer"
    scorer = f"{{type: prefix-cache-scorer, parameters: {{prefixMatchInfoProducerName: {name}}}}}"
    _, pipeline = configure(f"plugins: [{{type: {name}}}, {scorer}]", ANY_PARTS)
    ignored, reads = pipeline.warnings
    assert ignored.startswith(f"plugin '{name}' is ignored")
    assert reads.startswith(f"plugin 'prefix-cache-scorer' reads prefix matches of '{name}'")


def samples() -> Iterator[tuple[str, str]]:
    """Every configuration that is shown in the documents or lies in the tests' data."""
    for path in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("*/*.md")]):
        for number, block in enumerate(
            re.findall(r"```ya?ml\n(.*?)```", path.read_text(), re.DOTALL)
        ):
            if "EndpointPickerConfig" in block:
                yield f"{path.relative_to(ROOT)}[{number}]", block
    for folder in ("dialects", "shapes"):
        for path in sorted((CONFIGS / folder).glob("*.yaml")):
            yield f"{folder}/{path.name}", path.read_text()


SAMPLES = dict(samples())


@pytest.mark.parametrize("name", SAMPLES)
def test_b189_every_sample_loads(name: str) -> None:
    """A mistyped plugin name in a sample stopped the scheduler from starting (kserve PR 5411)."""
    loaded, pipeline = configure(SAMPLES[name], ANY_PARTS)
    assert loaded.config.plugins
    assert pipeline.scheduler.profiles


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("kv-cache-utilisation-scorer", "kv-cache-utilization-scorer"), ("queue_scorer", "queue-scorer"),
     ("max-score-pickr", "max-score-picker"), ("prefix-cache-score", "prefix-cache-scorer")],
)  # fmt: skip
def test_b189_a_mistyped_plugin_is_refused_with_the_right_name(typed: str, meant: str) -> None:
    text = f"plugins: [{{type: random-picker}}, {{type: {typed}}}]"
    said = f"unknown plugin type '{typed}', did you mean '{meant}'? - at `$.plugins[1].type`"
    with pytest.raises(ConfigError, match=re.escape(said)):
        configure(text, ANY_PARTS)


OLD_NAMES = {
    "tokenizer": "token-producer",
    "model-server-protocol-metrics": "core-metrics-extractor",
    "by-label-selector": "label-selector-filter",
    "pd-profile-handler": "disagg-profile-handler",
    "prefix-disaggregation-decider": "prefix-based-pd-decider",
    "precise-prefix-cache-scorer": "precise-prefix-cache-producer",
    "predicted-latency-scorer": "latency-scorer",
    "active-request-filter": "utilization-filter",
    "eviction-sheddable-filter": "sheddable-eviction-filter",
    "eviction-priority-then-time-ordering": "priority-then-time-eviction-order-policy",
}


@pytest.mark.parametrize(("old", "new"), OLD_NAMES.items())
def test_b192_an_old_plugin_name_works_with_a_warning_or_is_refused_with_the_new_one(
    old: str, new: str
) -> None:
    """No start after an upgrade: a type's name differs between releases (kserve PR 5545)."""
    try:
        loaded, _ = configure(f"plugins: [{{type: {old}}}]", ANY_PARTS)
    except ConfigError as error:
        assert f"type {old} is read as" in str(error)
        assert new in str(error)
    else:
        assert any(old in warning and new in warning for warning in loaded.warnings)


def test_b192_old_names_are_no_types_of_today() -> None:
    kept = {
        "by-label-selector",
        "pd-profile-handler",
        "tokenizer",
    }  # read for what has no successor
    assert {old for old in OLD_NAMES if ANY_PARTS.catalog.get(old) or old in NOT_YET} == kept


def starts(text: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> bool:
    """Check the file as ``epp check`` does; it must say something either way."""
    path = folder / "config.yaml"
    path.write_text(text)
    wrong = check([str(path)], allow_experimental=True)
    out = capsys.readouterr()
    assert "Traceback" not in out.out + out.err
    assert out.out.startswith(f"{path}: {'ERROR' if wrong else 'OK'}\n")
    return not wrong


@pytest.mark.parametrize(
    "text", ["", "{}", "plugins:", "kind: EndpointPickerConfig", "schedulingProfiles: []"]
)
def test_b193_the_smallest_configurations_start(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Null pointer at start-up with a given configuration (llm-d-router #255)."""
    assert starts(text, tmp_path, capsys)


DECODE_IS_GONE = ("disaggregated", "schedulingProfiles")  #: its handler runs that profile


@pytest.mark.parametrize("name", sorted(path.stem for path in (CONFIGS / "shapes").glob("*.yaml")))
def test_b193_with_each_section_gone_or_empty_it_starts_or_says_why_not(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = yaml.safe_load((CONFIGS / "shapes" / f"{name}.yaml").read_text())
    for section in whole:
        rest = {key: value for key, value in whole.items() if key != section}
        found = [
            starts(yaml.safe_dump(raw), tmp_path, capsys)
            for raw in (rest, {**rest, section: None}, {**rest, section: 7}, {**rest, section: {}})
        ]
        referred_to = section == "plugins" and "schedulingProfiles" in whole
        assert found[0] is (not referred_to and (name, section) != DECODE_IS_GONE)
        assert found[1] is found[0]
        assert found[2] is False


@pytest.mark.parametrize("name", sorted(path.stem for path in (CONFIGS / "shapes").glob("*.yaml")))
def test_b193_with_each_plugin_gone_it_starts_or_says_why_not(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = yaml.safe_load((CONFIGS / "shapes" / f"{name}.yaml").read_text())
    for index in range(len(whole["plugins"])):
        rest = [spec for i, spec in enumerate(whole["plugins"]) if i != index]
        starts(yaml.safe_dump({**whole, "plugins": rest}), tmp_path, capsys)


@pytest.mark.parametrize(
    "handler", ["disagg-profile-handler", "pd-profile-handler, parameters: {threshold: 9}"]
)
def test_b193_a_handler_without_its_profile_does_not_wait_for_the_first_request(
    handler: str,
) -> None:
    text = f"plugins: [{{type: {handler}}}]\nschedulingProfiles: [{{name: other}}]"
    said = r"runs profile 'decode', which is not configured: there is other - at"
    with pytest.raises(ConfigError, match=said):
        configure(text, ANY_PARTS)
