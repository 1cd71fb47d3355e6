"""What a configuration leaves out, rule by rule."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from epp.catalog import Catalog
from epp.config.load import load
from epp.config.schema import Config
from epp.errors import ConfigError

CATALOG = Catalog()
SCORERS = (
    ("queue-scorer", 2.0),
    ("kv-cache-utilization-scorer", 2.0),
    ("prefix-cache-scorer", 3.0),
)
PARSERS = ["openai-parser", "anthropic-parser", "vllmhttp-parser", "passthrough-parser"]
ONE = "schedulingProfiles: [{name: only, plugins: [{pluginRef: queue-scorer}]}]\n"
TWO = "schedulingProfiles: [{name: a}, {name: b}]\n"


def normalised(text: str | None) -> Config:
    return load(text, kinds=CATALOG.kinds, default_profile=SCORERS).config


def refused(text: str) -> str:
    with pytest.raises(ConfigError) as error:
        normalised(text)
    return str(error.value)


def profiles(config: Config) -> dict[str, list[tuple[str, float | None]]]:
    return {
        profile.name: [(place.plugin_ref, place.weight) for place in profile.plugins]
        for profile in config.scheduling_profiles
    }


def names(config: Config) -> list[str]:
    return [spec.ref for spec in config.plugins]


def plugins(*types: str) -> str:
    return "plugins: [" + ", ".join(f"{{type: {each}}}" for each in types) + "]\n"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(None, id="no file"),
        pytest.param("featureGates: []", id="a file without plugins"),
        pytest.param("saturationDetector: {queueDepthThreshold: 9}", id="only an old detector"),
        pytest.param(
            "plugins: [{type: file-discovery, parameters: {path: /a}}]\n"
            "dataLayer: {discovery: {pluginRef: file-discovery}}",
            id="only discovery",
        ),
        pytest.param(plugins("openai-parser", "agent-identity"), id="nothing that chooses"),
    ],
)
def test_rule_1_nothing_to_schedule_by_takes_the_default_scorers(text: str | None) -> None:
    config = normalised(text)
    assert profiles(config) == {"default": [*SCORERS, ("max-score-picker", None)]}
    assert {"metrics-data-source", "core-metrics-extractor"} <= set(names(config))


def test_rule_1_everything_that_runs_without_a_file_is_named() -> None:
    assert sorted(names(normalised(None))) == sorted(
        [
            "queue-scorer",
            "kv-cache-utilization-scorer",
            "prefix-cache-scorer",
            "single-profile-handler",
            "max-score-picker",
            *PARSERS,
            "approx-prefix-cache-producer",
            "utilization-detector",
            "metrics-data-source",
            "core-metrics-extractor",
        ]
    )


def test_rule_2_without_profiles_every_filter_scorer_and_picker_is_in_one() -> None:
    text = plugins(
        "decode-filter", "openai-parser", "queue-scorer", "random-picker", "agent-identity",
        "always-disagg-pd-decider", "utilization-detector",
    )  # fmt: skip
    assert profiles(normalised(text)) == {
        "default": [
            ("decode-filter", None),
            ("queue-scorer", None),
            ("random-picker", None),
            ("utilization-detector", None),  # it is a filter too
        ]
    }


def test_rule_2_a_lone_picker_is_a_choice() -> None:
    assert profiles(normalised(plugins("random-picker"))) == {"default": [("random-picker", None)]}


def test_rule_2_does_not_touch_configured_profiles() -> None:
    config = normalised(plugins("queue-scorer", "decode-filter") + ONE)
    assert profiles(config) == {"only": [("queue-scorer", None), ("max-score-picker", None)]}


def test_rule_3_one_profile_needs_no_handler() -> None:
    assert "single-profile-handler" in names(normalised(plugins("queue-scorer") + ONE))


def test_rule_3_a_configured_handler_stays_alone() -> None:
    config = normalised(plugins("queue-scorer", "data-parallel-profile-handler") + ONE)
    assert "single-profile-handler" not in names(config)


def test_rule_3_two_profiles_need_a_handler() -> None:
    assert refused(TWO) == (
        "profiles a, b need a profile handler that chooses among them - at `$.plugins`"
    )


def test_rule_3_two_handlers_are_refused() -> None:
    text = plugins("single-profile-handler", "header-profile-handler") + ONE.replace("queue-scorer", "single-profile-handler")  # fmt: skip
    assert refused(text) == (
        "more than one profile handler is configured: single-profile-handler, "
        "header-profile-handler - at `$.plugins`"
    )


def test_rule_4_a_configured_picker_is_reused_and_only_where_none_is() -> None:
    text = plugins("disagg-profile-handler", "queue-scorer", "random-picker", "max-score-picker")
    text += "schedulingProfiles: [{name: a, plugins: [{pluginRef: max-score-picker}]}, {name: b}]"
    assert profiles(normalised(text)) == {
        "a": [("max-score-picker", None)],
        "b": [("random-picker", None)],
    }


def test_rule_4_without_any_picker_the_best_score_wins_in_every_profile() -> None:
    config = normalised(plugins("disagg-profile-handler") + TWO)
    assert profiles(config) == {
        "a": [("max-score-picker", None)],
        "b": [("max-score-picker", None)],
    }
    assert names(config).count("max-score-picker") == 1


def parsers(config: Config) -> list[str]:
    assert config.request_handler is not None
    return [each.plugin_ref for each in config.request_handler.parsers]


def test_rule_5_without_parsers_four_read_requests() -> None:
    assert parsers(normalised(None)) == PARSERS
    assert parsers(normalised("requestHandler: {parsers: []}")) == PARSERS


def test_rule_5_configured_parsers_are_the_only_ones() -> None:
    text = (
        plugins("sglanghttp-parser") + "requestHandler: {parsers: [{pluginRef: sglanghttp-parser}]}"
    )
    config = normalised(text)
    assert parsers(config) == ["sglanghttp-parser"]
    assert "openai-parser" not in names(config)


def test_rule_5_a_default_parser_may_be_named_without_configuring_it() -> None:
    config = normalised("requestHandler: {parsers: [{pluginRef: anthropic-parser}]}")
    assert parsers(config) == ["anthropic-parser"]
    assert "anthropic-parser" in names(config)


@pytest.mark.parametrize(
    "reader",
    [
        "prefix-cache-scorer", "prefix-cache-affinity-filter", "no-hit-lru-scorer",
        "token-load-scorer", "prefix-based-pd-decider", "in-flight-load-scorer",
    ],
)  # fmt: skip
def test_rule_6_who_reads_prefix_matches_gets_a_producer(reader: str) -> None:
    assert "approx-prefix-cache-producer" in names(normalised(plugins(reader, "queue-scorer")))


def test_rule_6_bytes_that_are_not_cached_need_the_producer_too() -> None:
    text = "plugins: [{type: pd-profile-handler, parameters: {threshold: 100}}]\n"
    text += "schedulingProfiles: [{name: prefill}, {name: decode}]"
    assert "approx-prefix-cache-producer" in names(normalised(text))


def test_rule_6_nobody_who_reads_needs_no_producer() -> None:
    assert "approx-prefix-cache-producer" not in names(normalised(plugins("queue-scorer")))


def test_rule_6_a_configured_producer_of_any_name_is_enough() -> None:
    text = "plugins: [{type: prefix-cache-scorer}, {type: approx-prefix-cache-producer, name: p}]"
    assert "approx-prefix-cache-producer" not in names(normalised(text))


def with_producer(name: str, *others: dict[str, Any]) -> str:
    parameters = f"{{prefixMatchInfoProducerName: {name}}}"
    rest = "".join(f", {each}" for each in others)
    return f"plugins: [{{type: prefix-cache-scorer, parameters: {parameters}}}{rest}]"


def test_rule_6_the_producer_s_own_name_may_be_written() -> None:
    config = normalised(with_producer("approx-prefix-cache-producer"))
    assert names(config).count("approx-prefix-cache-producer") == 1


def test_rule_6_the_name_of_no_plugin_is_refused() -> None:
    assert refused(with_producer("aprox-prefix-cache-producer")).startswith(
        "no plugin is named 'aprox-prefix-cache-producer'"
    )
    assert refused(with_producer("x")).endswith(
        "- at `$.plugins[0].parameters.prefixMatchInfoProducerName`"
    )


def test_rule_6_the_name_of_another_plugin_is_refused() -> None:
    text = with_producer("q", {"type": "queue-scorer", "name": "q"})
    assert refused(text).startswith("plugin 'q' is no producer of prefix matches")


def detector(config: Config) -> str:
    assert config.flow_control is not None
    assert config.flow_control.saturation_detector is not None
    return config.flow_control.saturation_detector.plugin_ref


def test_rule_7_the_detector_is_the_utilization_detector_with_its_configured_parameters() -> None:
    assert detector(normalised(None)) == "utilization-detector"
    text = "plugins: [{type: utilization-detector, parameters: {queueDepthThreshold: 9}}]"
    config = normalised(text)
    assert detector(config) == "utilization-detector"
    (spec,) = [each for each in config.plugins if each.type == "utilization-detector"]
    assert spec.parameters == {"queueDepthThreshold": 9}


def test_rule_7_the_detector_may_be_named_without_configuring_it() -> None:
    text = "flowControl: {saturationDetector: {pluginRef: utilization-detector}}"
    assert "utilization-detector" in names(normalised(text))


def test_rule_7_another_detector_is_the_only_one() -> None:
    text = plugins("concurrency-detector", "queue-scorer")
    config = normalised(
        text + "flowControl: {saturationDetector: {pluginRef: concurrency-detector}}"
    )
    assert detector(config) == "concurrency-detector"
    assert "utilization-detector" not in names(config)


def test_rule_7_the_default_policies_may_be_named_without_configuring_them() -> None:
    text = """
flowControl:
  usageLimitPolicyPluginRef: static-usage-limit-policy
  defaultPriorityBand:
    fairnessPolicyRef: global-strict-fairness-policy
    orderingPolicyRef: fcfs-ordering-policy
"""
    assert detector(normalised(text)) == "utilization-detector"


def sources(config: Config) -> list[tuple[str, list[str]]]:
    layer = config.data_layer
    assert layer is not None
    return [(s.plugin_ref, [e.plugin_ref for e in s.extractors]) for s in layer.sources]


def test_load_is_scraped_unless_it_is_said_not_to_be() -> None:
    wanted = [("metrics-data-source", ["core-metrics-extractor"])]
    assert sources(normalised(None)) == wanted
    assert sources(normalised("dataLayer: {injectDefaults: true}")) == wanted
    off = normalised("dataLayer: {injectDefaults: false}")
    assert sources(off) == []
    assert "metrics-data-source" not in names(off)


def test_a_configured_source_is_not_doubled() -> None:
    text = """
plugins:
- {type: metrics-data-source, name: mine}
- {type: core-metrics-extractor, name: reader}
dataLayer: {sources: [{pluginRef: mine, extractors: [{pluginRef: reader}]}]}
"""
    config = normalised(text)
    assert sources(config) == [("mine", ["reader"])]
    assert [n for n in names(config) if "metrics" in n] == []


@pytest.mark.parametrize(
    ("gate", "said"),
    [
        ("flowControll", ("unknown feature gate 'flowControll', did you mean 'flowControl'? "
         "- at `$.featureGates[0]`")),
        ("flowControl=yes", ("feature gate 'flowControl' is true or false, not 'yes' "
         "- at `$.featureGates[0]`")),
        ("flowControl=", ("feature gate 'flowControl' is true or false, not '' "
         "- at `$.featureGates[0]`")),
    ],
)  # fmt: skip
def test_an_unknown_gate_is_refused(gate: str, said: str) -> None:
    assert refused(f"featureGates: ['{gate}']") == said


@pytest.mark.parametrize(
    ("gates", "warns"),
    [
        ("flowControl", True), ("flowControl=true", True), ("flowControl=false", False),
        ("flowControl, flowControl=false", False), ("haPopulateNonLeaderDatastore", False),
        ("haPopulateNonLeaderDatastore=false", True),
    ],
)  # fmt: skip
def test_a_gate_that_changes_nothing_is_told_and_the_last_word_on_a_gate_counts(
    gates: str, warns: bool
) -> None:
    found = load(f"featureGates: [{gates}]", kinds=CATALOG.kinds, default_profile=SCORERS)
    assert bool(found.warnings) is warns


SYNCER = "plugins: [{type: local-syncer}]\ndataLayer: "


@pytest.mark.parametrize(
    ("layer", "warning"),
    [
        (
            "{peerDiscovery: {pluginRef: local-syncer}}",
            "peerDiscovery is ignored: --peers says where",
        ),
        (
            "{crossReplicaSyncerPluginRef: local-syncer}",
            "crossReplicaSyncerPluginRef is ignored: --peers makes",
        ),
        ("{crossReplicaSyncInterval: 5s}", "crossReplicaSyncInterval is ignored: pickers tell"),
    ],
)
def test_a_field_about_other_replicas_is_ignored_with_one_warning_that_says_what_does_it(
    layer: str, warning: str
) -> None:
    found = load(SYNCER + layer, kinds=CATALOG.kinds, default_profile=SCORERS)
    (told,) = found.warnings
    assert told.startswith(f"dataLayer.{warning}")


@pytest.mark.parametrize(
    ("layer", "place"),
    [
        ("{peerDiscovery: {pluginRef: locl-syncer}}", "peerDiscovery.pluginRef"),
        ("{crossReplicaSyncerPluginRef: locl-syncer}", "crossReplicaSyncerPluginRef"),
    ],
)
def test_what_is_ignored_must_be_right_all_the_same(layer: str, place: str) -> None:
    assert refused(SYNCER + layer) == (
        f"no plugin is named 'locl-syncer', did you mean 'local-syncer'? - at `$.dataLayer.{place}`"
    )


def test_a_normalised_configuration_is_left_as_it_is() -> None:
    for text in (None, plugins("decode-filter", "queue-scorer"), plugins("disagg-profile-handler") + TWO):  # fmt: skip
        once = normalised(text)
        again = normalised(msgspec.json.encode(once).decode())
        assert again == once
