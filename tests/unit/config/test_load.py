"""Reading a configuration: what is refused, with which place and which hint."""

from __future__ import annotations

import pytest

from epp.catalog import Catalog
from epp.config.decode import MAX_BYTES
from epp.config.load import Loaded, explained, load
from epp.config.schema import Config, PluginSpec
from epp.errors import ConfigError

HEAD = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"


def refused(text: str | bytes) -> str:
    with pytest.raises(ConfigError) as error:
        load(text, kinds=Catalog().kinds)
    return str(error.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("plugin: []", "Object contains unknown field `plugin`, did you mean `plugins`? - at `$`"),
        ("plugins: [{typ: a}]",
         "Object contains unknown field `typ`, did you mean `type`? - at `$.plugins[0]`"),
        ("plugins: [{type: a}, {type: b, parameter: {}}]",
         ("Object contains unknown field `parameter`, did you mean `parameters`? "
         "- at `$.plugins[1]`")),
        ("schedulingProfiles: [{name: p, plugins: [{pluginref: a}]}]",
         ("Object contains unknown field `pluginref`, did you mean `pluginRef`? "
         "- at `$.schedulingProfiles[0].plugins[0]`")),
        ("plugins: [{}]", "Object missing required field `type` - at `$.plugins[0]`"),
        ("schedulingProfiles: [{name: p, plugins: [{pluginRef: a, wieght: 1}]}]",
         ("Object contains unknown field `wieght`, did you mean `weight`? "
         "- at `$.schedulingProfiles[0].plugins[0]`")),
        ("dataLayer: {source: []}",
         "Object contains unknown field `source`, did you mean `sources`? - at `$.dataLayer`"),
        ("flowControl: {defaultRequestTtl: 1s}",
         ("Object contains unknown field `defaultRequestTtl`, did you mean `defaultRequestTTL`? "
         "- at `$.flowControl`")),
        ("flowControl: {priorityBands: [{priority: 1, maxByte: 1}]}",
         ("Object contains unknown field `maxByte`, did you mean `maxBytes`? "
         "- at `$.flowControl.priorityBands[0]`")),
        ("flowControl: {defaultPriorityBand: {zzz: 1}}",
         "Object contains unknown field `zzz` - at `$.flowControl.defaultPriorityBand`"),
        ("requestHandler: {parser: a}",
         "Object contains unknown field `parser`, did you mean `parsers`? - at `$.requestHandler`"),
    ],
)  # fmt: skip
def test_an_unknown_field_is_refused_with_its_place_and_the_nearest_known(
    text: str, said: str
) -> None:
    assert refused(HEAD + text) == said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("plugins: 5", "Expected `array`, got `int` - at `$.plugins`"),
        ("plugins: [queue-scorer]", "Expected `object`, got `str` - at `$.plugins[0]`"),
        ("plugins: [{type: 5}]", "Expected `str`, got `int` - at `$.plugins[0].type`"),
        ("plugins: [{type: ''}]", "length >= 1 - at `$.plugins[0].type`"),
        ("plugins: [{type: a, parameters: [1]}]", "- at `$.plugins[0].parameters`"),
        ("schedulingProfiles: [{name: p, plugins: [{pluginRef: a, weight: much}]}]",
         "- at `$.schedulingProfiles[0].plugins[0].weight`"),
        ("schedulingProfiles: [{name: p, plugins: [{pluginRef: a, weight: -1}]}]",
         "- at `$.schedulingProfiles[0].plugins[0].weight`"),
        ("flowControl: {defaultRequestTTL: 5}", "- at `$.flowControl.defaultRequestTTL`"),
        ("flowControl: {defaultRequestTTL: 5 s}", "- at `$.flowControl.defaultRequestTTL`"),
        ("flowControl: {maxBytes: 1X}", "- at `$.flowControl.maxBytes`"),
        ("flowControl: {priorityBands: [{}]}",
         "missing required field `priority` - at `$.flowControl.priorityBands[0]`"),
        ("dataLayer: {injectDefaults: 'no'}", "- at `$.dataLayer.injectDefaults`"),
        ("featureGates: [1]", "- at `$.featureGates[0]`"),
    ],
)  # fmt: skip
def test_a_wrong_type_is_refused_with_its_place(text: str, said: str) -> None:
    assert refused(HEAD + text).endswith(said)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("apiVersion: llm-d.ai/v1", ("apiVersion is 'llm-d.ai/v1', not 'llm-d.ai/v1alpha1' "
         "- at `$.apiVersion`")),
        ("kind: InferencePool", ("kind is 'InferencePool', not 'EndpointPickerConfig' "
         "- at `$.kind`")),
        ("- a", "the configuration is not a mapping of names to values - at `$`"),
        ("just words", "the configuration is not a mapping of names to values - at `$`"),
        ("5: a", "the configuration is not a mapping of names to values - at `$`"),
    ],
)  # fmt: skip
def test_what_is_no_such_configuration_is_refused(text: str, said: str) -> None:
    assert refused(text) == said


@pytest.mark.parametrize("text", [b"\xff\xfe\x00", b"a: \x00", "a: [", "a: b: c", "a: 1\n---\nb: 2",
                                  "? [1]\n: 2", "{? {a: 1} : 2}", "a: *b"])  # fmt: skip
def test_what_is_not_yaml_is_refused(text: str | bytes) -> None:
    assert "the configuration is not" in refused(text)


@pytest.mark.parametrize("text", [None, "", " \n\t", "# words\n", "---\n...\n", "{}", b""])
def test_nothing_is_an_empty_configuration(text: str | bytes | None) -> None:
    assert load(text) == Loaded(Config(), (), "")


def test_empty_sections_are_as_if_left_out() -> None:
    sections = ("plugins", "featureGates", "schedulingProfiles", "dataLayer", "flowControl",
                "requestHandler", "data", "parser", "saturationDetector")  # fmt: skip
    for section in sections:
        assert load(f"{HEAD}{section}:\n").config == Config()
    inner = "schedulingProfiles: [{name: p, plugins: }]\ndataLayer: {sources: }\n"
    assert load(HEAD + inner).config.scheduling_profiles[0].plugins == ()


def test_null_stays_where_a_plugin_may_give_it_a_meaning() -> None:
    found = load("plugins: [{type: disagg-profile-handler, parameters: {maxDecodeQueue: null}}]")
    assert found.config.plugins[0].parameters == {"maxDecodeQueue": None}


def test_a_key_that_is_there_twice_is_refused_with_its_line() -> None:
    assert refused("plugins: []\nkind: EndpointPickerConfig\nplugins: []\n") == (
        "key 'plugins' is there twice - at line 3"
    )
    nested = "plugins:\n- type: a\n  parameters:\n    x: 1\n    'x': 2\n"
    assert refused(nested) == "key 'x' is there twice - at line 5"


def test_anchors_and_merges_are_read_and_shared_parts_stay_apart() -> None:
    text = """
plugins:
- type: prefix-cache-scorer
  name: a
  parameters: &old {blockSize: 64, autoTune: false}
- type: prefix-cache-scorer
  name: b
  parameters: {<<: *old, blockSize: 128}
- {type: prefix-cache-scorer, name: c, parameters: *old}
"""
    found = load(text)
    producers = [each for each in found.config.plugins if each.type != "prefix-cache-scorer"]
    assert [each.parameters for each in producers] == [
        {"autoTune": False, "blockSizeTokens": 16},
        {"autoTune": False, "blockSizeTokens": 32},
        {"autoTune": False, "blockSizeTokens": 16},
    ]
    assert len(found.warnings) == 6


def test_many_aliases_deep_nesting_and_exploding_ones_are_refused() -> None:
    many = "x: &a 1\ny: [" + "*a, " * 101 + "]"
    assert refused(many) == "the configuration has more than 100 YAML aliases"
    deep = "a: " + "[" * 50 + "]" * 50
    assert refused(deep) == "the configuration is nested more than 50 deep"
    assert "the configuration is not YAML" in refused("a: " + "[" * 100_000)
    laughs = ["l0: &l0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    laughs += [f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 10)}]" for i in range(1, 9)]
    assert refused("\n".join(laughs)) == "the configuration has more than 100000 values"
    assert refused("x: &a [*a]") == "the configuration holds itself"


def test_a_huge_file_is_refused_by_its_size() -> None:
    said = refused("#" * (MAX_BYTES + 1))
    assert said == f"the configuration has {MAX_BYTES + 1} bytes, more than {MAX_BYTES}"
    assert load("#" * MAX_BYTES).config == Config()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("plugins: [{type: queue-scorer}, {type: queue-scorer}]",
         "duplicate plugin name 'queue-scorer' - at `$.plugins[1]`"),
        ("plugins: [{type: queue-scorer}, {type: random-picker, name: queue-scorer}]",
         "duplicate plugin name 'queue-scorer' - at `$.plugins[1]`"),
        ("schedulingProfiles: [{name: a}, {name: a}]",
         "duplicate profile name 'a' - at `$.schedulingProfiles[1].name`"),
    ],
)  # fmt: skip
def test_a_name_that_is_there_twice_is_refused(text: str, said: str) -> None:
    assert refused(text) == said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("schedulingProfiles: [{name: p, plugins: [{pluginRef: queue-scorr}]}]",
         ("no plugin is named 'queue-scorr', did you mean 'queue-scorer'? "
         "- at `$.schedulingProfiles[0].plugins[0].pluginRef`")),
        ("dataLayer: {sources: [{pluginRef: zzz}]}",
         "no plugin is named 'zzz' - at `$.dataLayer.sources[0].pluginRef`"),
        ("dataLayer: {sources: [{pluginRef: queue-scorer, extractors: [{pluginRef: zzz}]}]}",
         "no plugin is named 'zzz' - at `$.dataLayer.sources[0].extractors[0].pluginRef`"),
        ("dataLayer: {discovery: {pluginRef: zzz}}",
         "no plugin is named 'zzz' - at `$.dataLayer.discovery.pluginRef`"),
        ("requestHandler: {parsers: [{pluginRef: zzz}]}",
         "no plugin is named 'zzz' - at `$.requestHandler.parsers[0].pluginRef`"),
        ("flowControl: {saturationDetector: {pluginRef: zzz}}",
         "no plugin is named 'zzz' - at `$.flowControl.saturationDetector.pluginRef`"),
        ("flowControl: {usageLimitPolicyPluginRef: zzz}",
         "no plugin is named 'zzz' - at `$.flowControl.usageLimitPolicyPluginRef`"),
        ("flowControl: {priorityBands: [{priority: 1, fairnessPolicyRef: zzz}]}",
         "no plugin is named 'zzz' - at `$.flowControl.priorityBands[0].fairnessPolicyRef`"),
        ("flowControl: {defaultNegativePriorityBand: {orderingPolicyRef: zzz}}",
         ("no plugin is named 'zzz' "
         "- at `$.flowControl.defaultNegativePriorityBand.orderingPolicyRef`")),
    ],
)  # fmt: skip
def test_a_reference_to_nobody_is_refused(text: str, said: str) -> None:
    assert refused("plugins: [{type: queue-scorer}]\n" + text) == said


def test_a_plugin_may_be_named_before_it_is_configured() -> None:
    text = "schedulingProfiles: [{name: p, plugins: [{pluginRef: q}]}]\n"
    found = load(text + "plugins: [{type: queue-scorer, name: q}]")
    assert found.config.plugins == (PluginSpec("queue-scorer", "q"),)


def test_whole_numbers_are_weights_too_and_the_source_is_remembered() -> None:
    text = "plugins: [{type: a}]\nschedulingProfiles: [{name: p, plugins: [{pluginRef: a, weight: 3}]}]"
    found = load(text, source="/etc/epp/config.yaml")
    assert found.config.scheduling_profiles[0].plugins[0].weight == 3.0
    assert found.source == "/etc/epp/config.yaml"


def test_json_with_tabs_is_yaml_too() -> None:
    assert load('{"plugins": [{"type": "queue-scorer"}]}').config.plugins[0].ref == "queue-scorer"


def test_a_refusal_after_translations_tells_them() -> None:
    old = "apiVersion: inference.networking.x-k8s.io/v1alpha1\nplugin: []"
    lines = refused(old).splitlines()
    assert lines[0].endswith("did you mean `plugins`? - at `$`")
    assert lines[1:] == [
        "  after this was read:",
        (
            "  apiVersion inference.networking.x-k8s.io/v1alpha1 is deprecated: write "
            "llm-d.ai/v1alpha1"
        ),
    ]
    plain = ConfigError("plain")
    assert explained(plain, ()) is plain
