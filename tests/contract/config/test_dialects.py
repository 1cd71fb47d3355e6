"""Configurations of earlier releases. Each has a twin in today's spelling next to it."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from epp.build import configure
from epp.config.dialects import translate
from epp.errors import ConfigError
from tests.support.replayed import ANY_PARTS, CONFIGS, replay

DIALECTS = sorted(path.name[:-9] for path in (CONFIGS / "dialects").glob("*.old.yaml"))
NOT_YET = "not supported yet"


def dialect(name: str) -> str:
    return (CONFIGS / "dialects" / name).read_text()


def test_the_dialects_of_eleven_releases_are_there() -> None:
    assert len(DIALECTS) == 11


@pytest.mark.parametrize("name", DIALECTS)
def test_a_dialect_picks_as_its_twin_and_says_what_was_read_as_what(name: str) -> None:
    old, new = replay(dialect(f"{name}.old.yaml")), replay(dialect(f"{name}.new.yaml"))
    assert old.picks == new.picks
    assert len(old.destinations) > 1  # or equal picks would say little
    said = [each for each in old.warnings if NOT_YET not in each]
    wanted = dialect(f"{name}.warnings.txt").splitlines()  # how each warning begins
    assert [a[: len(b)] for a, b in zip(said, wanted, strict=True)] == wanted
    assert all(NOT_YET in each for each in new.warnings)


def test_a_configuration_that_follows_events_is_built_as_it_is() -> None:
    _, pipeline = configure((CONFIGS / "precise.yaml").read_text(), ANY_PARTS)
    producer = pipeline.plugins["precise-prefix-cache-producer"]
    assert producer.params.token_processor_config.block_size_tokens == 64
    assert [each.type for each in pipeline.enrichers][:2] == ["token-producer", producer.type]
    assert not any("precise" in warning for warning in pipeline.warnings)


def test_index_and_scorer_in_one_are_read_as_two() -> None:
    loaded, pipeline = configure((CONFIGS / "llm-d-0.6-precise.yaml").read_text(), ANY_PARTS)
    producer = pipeline.plugins["precise-prefix-cache-producer"]
    assert producer.params.token_processor_config.block_size_tokens == 64
    assert producer.params.token_processor_config.hash_seed == "42"
    for each in (
        "type precise-prefix-cache-scorer is read as prefix-cache-scorer that reads",
        "tokenProcessorConfig.blockSize is read as tokenProcessorConfig.blockSizeTokens",
    ):
        assert any(each in warning for warning in loaded.warnings)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "gaie-1.3-predicted",
            [
                "use in-flight-load-scorer - at `$.plugins[0].type`",
                "type predicted-latency-scorer is read as latency-scorer",
            ],
        ),
        (
            "llm-d-0.6-precise-tokenizers",
            [
                "plugin 'precise-prefix-cache-producer': tokenizersPoolConfig is refused: use a",
                "indexerConfig.speculativeIndexing is read as speculativeIndexing",
                "indexerConfig.tokenizersPoolConfig is read as tokenizersPoolConfig",
            ],
        ),
    ],
)
def test_what_is_not_supported_is_refused_in_old_and_new_words(name: str, said: list[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        replay((CONFIGS / "refused" / f"{name}.yaml").read_text())
    for each in said:
        assert each in str(refused.value)


def one(type_: str, parameters: dict[str, Any], *others: dict[str, Any]) -> tuple[Any, ...]:
    """Translate one plugin; its type, its parameters and those plugins that were added."""
    raw = {"plugins": [{"type": type_, "parameters": parameters}, *others]}
    before = copy.deepcopy(raw)
    today, warnings = translate(raw)
    assert raw == before
    first, *rest = today["plugins"]
    return first["type"], first.get("parameters"), rest[len(others) :], len(warnings)


@pytest.mark.parametrize(
    ("parameters", "tokens"),
    [({"hashBlockSize": 64}, 16), ({"blockSize": 3}, 1), ({"blockSize": 7}, 1),
     ({"blockSize": 8}, 2), ({"hashBlockSize": 8, "blockSize": 400}, 2),
     ({"blockSizeTokens": 5, "blockSize": 400}, 5)],
)  # fmt: skip
def test_characters_are_four_a_token(parameters: dict[str, Any], tokens: int) -> None:
    _, _, (producer,), _ = one("prefix-cache-scorer", parameters)
    assert producer == {
        "type": "approx-prefix-cache-producer",
        "parameters": {"blockSizeTokens": tokens},
    }


def test_blocks_to_match_count_only_if_tokens_do_not() -> None:
    _, _, (producer,), warnings = one("prefix-cache-scorer", {"maxPrefixBlocksToMatch": 9})
    assert producer["parameters"] == {"maxPrefixBlocksToMatch": 9, "maxPrefixTokensToMatch": 0}
    assert warnings == 1
    both = {"maxPrefixBlocksToMatch": 9, "maxPrefixTokensToMatch": 77}
    _, _, (producer,), warnings = one("prefix-cache-scorer", both)
    assert producer["parameters"] == both
    assert warnings == 2


def test_a_taken_name_is_left_to_its_owner() -> None:
    taken = {"type": "queue-scorer", "name": "approx-prefix-cache-producer"}
    _, parameters, (producer,), _ = one("prefix-cache-scorer", {"autoTune": False}, taken)
    assert producer["name"] == "approx-prefix-cache-producer-too"
    assert parameters == {"prefixMatchInfoProducerName": "approx-prefix-cache-producer-too"}


@pytest.mark.parametrize(
    ("parameters", "type_", "selector"),
    [
        ({"label": "a", "validValues": ["x", "y"]}, "label-selector-filter",
         {"matchExpressions": [{"key": "a", "operator": "In", "values": ["x", "y"]}]}),
        ({"label": "a", "validValues": ["x"], "allowsNoLabel": False}, "label-selector-filter",
         {"matchExpressions": [{"key": "a", "operator": "In", "values": ["x"]}]}),
        ({"label": "a", "allowsNoLabel": True}, "label-selector-filter",
         {"matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]}),
        ({"label": "a", "validValues": ["x"], "allowsNoLabel": True}, "by-label",
         {"label": "a", "validValues": ["x"], "allowsNoLabel": True}),
        ({"label": "a"}, "by-label", {"label": "a"}),
        ({"label": "a", "validValues": ["x"], "lable": 1}, "by-label",
         {"label": "a", "validValues": ["x"], "lable": 1}),
    ],
)  # fmt: skip
def test_by_label_is_a_selector_where_one_can_say_it(
    parameters: dict[str, Any], type_: str, selector: dict[str, Any]
) -> None:
    assert one("by-label", parameters)[:2] == (type_, selector)


@pytest.mark.parametrize(
    ("parameters", "type_", "decider"),
    [
        ({}, "disagg-profile-handler", "always-disagg-pd-decider"),
        ({"threshold": 0}, "disagg-profile-handler", "always-disagg-pd-decider"),
        ({"deciderPluginName": "mine"}, "disagg-profile-handler", "mine"),
        ({"threshold": 100}, "pd-profile-handler", None),
        ({"deciderPluginName": "mine", "primaryPort": 8000}, "pd-profile-handler", None),
    ],
)
def test_the_old_handler_of_two_stages(
    parameters: dict[str, Any], type_: str, decider: str | None
) -> None:
    found, today, added, _ = one("pd-profile-handler", parameters)
    assert found == type_
    if decider is not None:
        assert today == {"deciders": {"prefill": decider}}
        assert [each["type"] for each in added] == [decider] * (decider != "mine")


def test_the_old_handler_finds_the_decider_of_the_default_name() -> None:
    decider = {"type": "prefix-based-pd-decider", "parameters": {"nonCachedTokens": 9}}
    found = one("pd-profile-handler", {}, decider)
    assert found[:3] == (
        "disagg-profile-handler", {"deciders": {"prefill": "prefix-based-pd-decider"}}, []
    )  # fmt: skip


def test_both_spellings_of_the_handler_s_parameters_are_left_for_it_to_refuse() -> None:
    both = {"decodeProfile": "d", "profiles": {"prefill": "p"}}
    assert one("disagg-profile-handler", dict(both)) == ("disagg-profile-handler", both, [], 0)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"data": {}, "dataLayer": {}}, "dataLayer"),
        ({"parser": {"pluginRef": "a"}, "requestHandler": {}}, "requestHandler"),
        (
            {"saturationDetector": {}, "flowControl": {"saturationDetector": {"pluginRef": "a"}}},
            "flowControl.saturationDetector",
        ),
    ],
)
def test_an_old_and_a_new_spelling_exclude_each_other(old: dict[str, Any], new: str) -> None:
    with pytest.raises(ConfigError, match=f"old spelling of {new}, which is there too"):
        translate(old)


@pytest.mark.parametrize(
    "raw",
    [
        {"plugins": 5},
        {"plugins": [5, {"type": 7}, {"name": "x"}, {"type": "pd-profile-handler", "parameters": 3}]},
        {"plugins": {"type": "by-label"}},
        {"featureGates": "dataLayer"},
        {"featureGates": [1, None]},
        {"flowControl": [], "saturationDetector": {}},
        {"plugins": [{"type": "prefix-cache-scorer", "parameters": {"blockSize": "x"}}]},
        {"plugins": [{"type": "precise-prefix-cache-producer",
                      "parameters": {"tokenProcessorConfig": [1]}}]},
    ],
)  # fmt: skip
def test_wrong_types_are_left_for_the_types_to_refuse(raw: dict[str, Any]) -> None:
    translate(raw)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (
            {"saturationDetector": {"queueDepthThreshold": 8}, "flowControl": {"maxBytes": 1}},
            {
                "plugins": [
                    {"type": "utilization-detector", "parameters": {"queueDepthThreshold": 8}}
                ],
                "flowControl": {
                    "maxBytes": 1,
                    "saturationDetector": {"pluginRef": "utilization-detector"},
                },
            },
        ),
        (
            {"saturationDetector": {"pluginRef": "mine"}},
            {"flowControl": {"saturationDetector": {"pluginRef": "mine"}}},
        ),
        (
            {"parser": {"pluginRef": "mine"}},
            {"requestHandler": {"parsers": [{"pluginRef": "mine"}]}},
        ),
        ({"data": {"sources": []}}, {"dataLayer": {"sources": []}}),
        (
            {"featureGates": ["dataLayer=true", "flowControl", "odd"]},
            {"featureGates": ["flowControl", "odd"]},
        ),
    ],
)
def test_old_sections_go_to_their_new_places(old: dict[str, Any], new: dict[str, Any]) -> None:
    today, warnings = translate(old)
    assert today == new
    assert len(warnings) == 1


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("kv-cache-scorer", "kv-cache-utilization-scorer"), ("max-score", "max-score-picker"),
        ("single-profile", "single-profile-handler"), ("tokenizer", "token-producer"),
    ],
)  # fmt: skip
def test_an_older_type_keeps_its_name_and_is_todays(old: str, new: str) -> None:
    today, warnings = translate({"plugins": [{"type": old}]})
    assert today["plugins"] == [{"type": new, "name": old}]
    assert warnings == (f"plugin {old!r}: type {old} is read as {new}",)
