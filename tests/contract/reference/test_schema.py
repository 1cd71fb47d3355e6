"""The schema takes what the loader takes, and refuses what an editor should underline."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from epp.build import Parts, configure
from epp.clock import ManualClock
from epp.errors import ConfigError
from epp.ledger import Ledger
from epp.pool import Pool
from epp.reference import examples, schema
from tests.support import build

ROOT = Path(__file__).resolve().parents[3]
SCHEMA = schema.config_schema()
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)

STICKY = """
plugins:
- {type: prefix-cache-affinity-filter, name: strict, parameters: {affinityThreshold: 0.99}}
- {type: token-load-scorer, parameters: null}
- {type: utilization-detector, parameters: {stalenessPolicy: ignore}}
schedulingProfiles:
- name: default
  plugins: [{pluginRef: strict}, {pluginRef: token-load-scorer, weight: 1}]
flowControl:
  defaultRequestTTL: 30s
  maxBytes: 1Gi
  saturationDetector: {pluginRef: utilization-detector}
"""
SOURCES = """
plugins:
- {type: metrics-data-source, parameters: {scheme: https, port: 9443, interval: 100ms}}
- type: core-metrics-extractor
  parameters: {engineConfigs: [{name: mine, queuedRequestsSpec: "queue{kind=all}"}]}
- {type: queue-scorer}
dataLayer:
  sources:
  - {pluginRef: metrics-data-source, extractors: [{pluginRef: core-metrics-extractor}]}
"""
(README,) = re.findall(r"```yaml\n(apiVersion:.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
CONFIGS = ROOT / "tests/data/config"
FILES = [*sorted(CONFIGS.glob("shapes/*.yaml")), *sorted(CONFIGS.glob("dialects/*.new.yaml"))]


def loaded(text: str) -> None:
    clock = ManualClock()
    parts = Parts(clock, build.tools().random, Ledger(), Pool(), allow_experimental=True)
    configure(text, parts)


def errors(config: Any) -> list[str]:
    return [error.message for error in VALIDATOR.iter_errors(config)]


def test_the_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("text", [STICKY, SOURCES, README, "{}"])
def test_what_the_loader_takes_is_valid(text: str) -> None:
    assert errors(yaml.safe_load(text)) == []
    loaded(text)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_configurations_that_people_run_are_valid_in_todays_spelling(file: Path) -> None:
    assert errors(yaml.safe_load(file.read_text())) == []


def test_older_spellings_are_for_the_loader_to_translate() -> None:
    assert len(FILES) >= 16
    old = CONFIGS / "dialects/gaie-1.2.old.yaml"
    assert errors(yaml.safe_load(old.read_text())) != []


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("plugin: []", id="an unknown section"),
        pytest.param("kind: Deployment", id="another kind"),
        pytest.param("apiVersion: v2", id="another version"),
        pytest.param("plugins: [{name: a}]", id="no type"),
        pytest.param("plugins: [{type: latency-scorer}]", id="a refused type"),
        pytest.param("plugins: [{type: dcgm-extractor}]", id="a type that says no"),
        pytest.param("plugins: [{type: queue-scorer, parameters: {a: 1}}]", id="a parameter"),
        pytest.param("plugins: [{type: by-label}]", id="a required parameter, no parameters"),
        pytest.param("plugins: [{type: by-label, parameters: {}}]", id="a required parameter"),
        pytest.param("plugins: [{type: load-aware-scorer, parameters: {threshold: 0}}]",
                     id="out of bounds"),
        pytest.param("plugins: [{type: max-score-picker, parameters: {maxNumOfEndpoints: two}}]",
                     id="text for a number"),
        pytest.param("plugins: [{type: by-label-selector, parameters: {a: 1}}]", id="any name"),
        pytest.param("schedulingProfiles: [{name: a, plugins: [{pluginRef: b, weight: -1}]}]",
                     id="a negative weight"),
        pytest.param("flowControl: {defaultRequestTTL: soon}", id="no duration"),
    ],
)  # fmt: skip
def test_wrong_configurations_are_refused_by_the_schema_and_by_the_loader(text: str) -> None:
    assert errors(yaml.safe_load(text)) != []
    with pytest.raises(ConfigError):
        loaded(text)


def test_types_of_ones_own_pass() -> None:
    assert errors({"plugins": [{"type": "zone-scorer", "parameters": {"zone": "a"}}]}) == []


@pytest.mark.parametrize("type_", examples.EXAMPLES)
def test_every_example_is_valid_unless_its_plugin_is_refused(type_: str) -> None:
    valid = errors({"plugins": [examples.entry(type_)]}) == []
    assert valid == (type_ not in schema.refused())


def test_an_editor_is_told_what_a_type_and_a_parameter_are() -> None:
    known = SCHEMA["$defs"]["PluginSpec"]["properties"]["type"]["anyOf"][0]
    told = dict(zip(known["enum"], known["enumDescriptions"], strict=True))
    assert told["random-picker"] == "Picks endpoints uniformly, whatever their scores."
    (load,) = (
        each["then"]["properties"]["parameters"]["anyOf"][0]["$ref"]
        for each in SCHEMA["$defs"]["PluginSpec"]["allOf"]
        if each["if"]["properties"]["type"]["const"] == "load-aware-scorer"
    )
    threshold = SCHEMA["$defs"][load.removeprefix("#/$defs/")]["properties"]["threshold"]
    assert threshold["description"] == "waiting requests"
    assert threshold["default"] == 128.0
