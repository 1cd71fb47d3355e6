"""From a configuration to a pipeline. Out: a second configuration, see `test_rebuild`."""

from __future__ import annotations

from pathlib import Path

import pytest

from epp.plugin import Observer
from epp.wrap.timed import EVERY
from tests.support import build
from tests.support.pipelines import PLAIN, Timings, World, counting, profile_names

# --- what is built -----------------------------------------------------------------


def test_nothing_at_all_is_the_default_configuration() -> None:
    for text in (None, "", "\n# nothing\n"):
        scorers = [
            ("queue-scorer", 2.0),
            ("kv-cache-utilization-scorer", 2.0),
            ("prefix-cache-scorer", 3.0),
            ("in-flight-load-scorer", 80.0),
        ]
        assert profile_names(World().pipeline(text)) == {
            "default": ([], scorers, "max-score-picker")
        }


def test_the_producer_that_a_scorer_needs_is_added() -> None:
    pipeline = World().pipeline("plugins: [{type: prefix-cache-scorer}]")
    producer = pipeline.plugins["approx-prefix-cache-producer"]
    assert pipeline.enrichers == (producer,)
    assert producer in pipeline.observers


def test_a_scorer_of_load_alone_needs_no_producer() -> None:
    assert World().pipeline("plugins: [{type: queue-scorer}]").enrichers == ()


def test_a_configured_producer_is_not_added_twice() -> None:
    pipeline = World().pipeline(
        "plugins: [{type: prefix-cache-scorer}, {type: approx-prefix-cache-producer, name: mine}]"
    )
    assert pipeline.enrichers == (pipeline.plugins["mine"],)


def test_a_scorer_of_weight_zero_is_built_but_not_asked() -> None:
    pipeline = World().pipeline(PLAIN)
    assert profile_names(pipeline) == {
        "default": ([], [("prefix-cache-scorer", 3.0)], "max-score-picker")
    }
    assert "queue-scorer" in pipeline.plugins


def test_filters_and_scorers_run_in_the_profiles_order() -> None:
    pipeline = World().pipeline(
        """
        plugins:
        - {type: label-selector-filter, name: one, parameters: {matchLabels: {a: b}}}
        - {type: label-selector-filter, name: two, parameters: {matchLabels: {c: d}}}
        - {type: queue-scorer}
        - {type: random-picker}
        schedulingProfiles:
        - name: default
          plugins: [{pluginRef: random-picker}, {pluginRef: two}, {pluginRef: queue-scorer},
                    {pluginRef: one}]
        """
    )
    assert profile_names(pipeline) == {
        "default": (["two", "one"], [("queue-scorer", 1.0)], "random-picker")
    }


def test_the_pipelines_observers_are_its_plugins_then_those_given() -> None:
    class Extra:
        def picked(self, *_: object) -> None: ...

        def ended(self, *_: object) -> None: ...

    extra: Observer = Extra()
    pipeline = World(extra_observers=(extra,)).pipeline(PLAIN)
    assert pipeline.observers[-1] is extra
    assert pipeline.observers[0] is pipeline.plugins["approx-prefix-cache-producer"]


def test_a_plugin_is_given_the_instances_it_refers_to_though_they_come_later(
    tmp_path: Path,
) -> None:
    pipeline = World(tmp_path).pipeline(counting(helper="other"))
    assert pipeline.plugins["mine"].dump_state()["helper"] is True


# --- what is refused ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param(
            "plugins: [{type: quue-scorer}]",
            "unknown plugin type 'quue-scorer', did you mean 'queue-scorer'? - at "
            "`$.plugins[0].type`",
            id="unknown type",
        ),
        pytest.param(
            "plugins: [{type: queue-scorer}, {type: queue-scorer}]",
            "duplicate plugin name 'queue-scorer' - at `$.plugins[1]`",
            id="duplicate name",
        ),
        pytest.param(
            "plugins: [{type: queue-scorer}]\n"
            "schedulingProfiles: [{name: p, plugins: [{pluginRef: queue-score}]}]",
            "no plugin is named 'queue-score', did you mean 'queue-scorer'? - at "
            "`$.schedulingProfiles[0].plugins[0].pluginRef`",
            id="unknown name",
        ),
        pytest.param(
            "plugins: [{type: queue-scorer}]\nrequestHandler: {parsers: [{pluginRef: queue-scorer}]}",
            "plugin 'queue-scorer' is no parser - at `$.requestHandler.parsers[0].pluginRef`",
            id="wrong kind: parser",
        ),
        pytest.param(
            "plugins: [{type: queue-scorer}]\n"
            "flowControl: {saturationDetector: {pluginRef: queue-scorer}}",
            "plugin 'queue-scorer' is no detector - at "
            "`$.flowControl.saturationDetector.pluginRef`",
            id="wrong kind: detector",
        ),
        pytest.param(
            "plugins: [{type: queue-scorer}]\ndataLayer: {sources: [{pluginRef: queue-scorer}]}",
            "plugin 'queue-scorer' is no data source - at `$.dataLayer.sources[0].pluginRef`",
            id="wrong kind: source",
        ),
        pytest.param(
            "plugins: [{type: metrics-data-source}, {type: random-picker}]\n"
            "dataLayer: {sources: [{pluginRef: metrics-data-source, "
            "extractors: [{pluginRef: random-picker}]}]}",
            "plugin 'random-picker' is no extractor - at "
            "`$.dataLayer.sources[0].extractors[0].pluginRef`",
            id="wrong kind: extractor",
        ),
        pytest.param(
            "plugins: [{type: metrics-data-source}]\n"
            "dataLayer: {discovery: {pluginRef: metrics-data-source}}",
            "plugin 'metrics-data-source' is no discovery - at `$.dataLayer.discovery.pluginRef`",
            id="wrong kind: discovery",
        ),
        pytest.param(
            "plugins: [{type: core-metrics-extractor, parameters: "
            "{engineConfigs: [{name: a, queuedRequestSpec: q}]}}]",
            "plugin 'core-metrics-extractor': Object contains unknown field `queuedRequestSpec`, "
            "did you mean "
            "`queuedRequestsSpec`? - at `$.plugins[0].parameters.engineConfigs[0]`",
            id="misspelt in a list",
        ),
        pytest.param(
            "plugins: [{type: disagg-profile-handler, parameters: {profiles: {decod: x}}}]\n"
            "schedulingProfiles: [{name: decode}]",
            "plugin 'disagg-profile-handler': Object contains unknown field `decod`, did you mean `decode`? - at "
            "`$.plugins[0].parameters.profiles`",
            id="misspelt in a block",
        ),
        pytest.param(
            "flowControl: {maxBytes: 1GB}",
            "Expected a quantity such as `1Gi` - at `$.flowControl.maxBytes`",
            id="a quantity",
        ),
        pytest.param(
            "flowControl: {defaultRequestTTL: 1d}",
            "Expected a duration such as `30s` - at `$.flowControl.defaultRequestTTL`",
            id="a duration",
        ),
        pytest.param(
            "plugins: [{type: random-picker}, {type: max-score-picker}]",
            "profile 'default' needs one picker, found ['random-picker', 'max-score-picker'] "
            "- at `$.schedulingProfiles[0].plugins`",
            id="two pickers",
        ),
        pytest.param(
            "plugins: [{type: single-profile-handler}, {type: queue-scorer}]\n"
            "schedulingProfiles: [{name: a, plugins: []}, {name: b, plugins: []}]",
            "single-profile-handler runs one profile, but several are configured - at "
            "`$.schedulingProfiles`",
            id="two profiles, one run",
        ),
        pytest.param(
            "plugins: [{type: queue-scorer, parameters: {x: 1}}]",
            "plugin 'queue-scorer': Object contains unknown field `x` - at `$.plugins[0].parameters`",
            id="unknown parameter",
        ),
        pytest.param(
            "plugins: [{type: approx-prefix-cache-producer, parameters: {blockSizeToken: 5}}]",
            "plugin 'approx-prefix-cache-producer': Object contains unknown field "
            "`blockSizeToken`, did you mean `blockSizeTokens`? - at `$.plugins[0].parameters`",
            id="misspelt parameter",
        ),
        pytest.param(
            "plugins: [{type: approx-prefix-cache-producer, parameters: {blockSizeTokens: no}}]",
            "plugin 'approx-prefix-cache-producer': Expected `int`, got `bool` - at "
            "`$.plugins[0].parameters.blockSizeTokens`",
            id="wrong type of a parameter",
        ),
        pytest.param(
            "plugins: [{type: latency-scorer}]",
            "plugin type 'latency-scorer': latency prediction is not supported yet; use "
            "in-flight-load-scorer - at `$.plugins[0].type`",
            id="not supported",
        ),
        pytest.param(
            counting(fail="value"),
            "plugin 'mine': fail must not be set - at `$.plugins[0].parameters`",
            id="a constructor",
        ),
        pytest.param(
            counting(fail="bug"),
            "plugin 'mine': KeyError: 'oops' - at `$.plugins[0].parameters`",
            id="a bug",
        ),
        pytest.param(
            counting(fail="refs"),
            "plugin 'mine': RuntimeError: refs are broken - at `$.plugins[0].parameters`",
            id="bad refs",
        ),
        pytest.param(
            counting(helper="othr"),
            "plugin 'mine' refers to 'othr', which is not configured, did you mean 'other'? "
            "- at `$.plugins[0].parameters`",
            id="unknown reference of a plugin",
        ),
        pytest.param(
            counting(helper="mine"),
            "plugins refer to each other in a circle: mine -> mine - at `$.plugins[0].parameters`",
            id="a circle",
        ),
    ],
)
def test_what_is_wrong_is_said_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    assert World(tmp_path).error(text) == said


OLDER = "apiVersion: inference.networking.x-k8s.io/v1alpha1\n"
ALPHA = "plugins: [{type: session-affinity-scorer}]"
EXPERIMENTAL = (
    "plugin type 'session-affinity-scorer' is experimental: start with "
    "--allow-experimental-plugins - at `$.plugins[0].type`"
)


def test_an_experimental_plugin_is_refused_unless_it_is_allowed() -> None:
    assert World().error(ALPHA) == EXPERIMENTAL
    pipeline = World(allow_experimental=True).pipeline(ALPHA)
    assert pipeline.warnings == ()


def test_a_file_older_than_the_flag_may_name_experimental_plugins() -> None:
    assert World().pipeline(OLDER + ALPHA).warnings == (EXPERIMENTAL,)


def test_an_ignored_type_is_warned_of_and_left_out_of_the_profiles() -> None:
    pipeline = World().pipeline(
        "plugins: [{type: local-syncer}, {type: queue-scorer}]\n"
        "schedulingProfiles: [{name: p, plugins: [{pluginRef: local-syncer}, "
        "{pluginRef: queue-scorer}]}]"
    )
    assert pipeline.warnings == (
        "plugin 'local-syncer' is ignored: --peers makes pickers tell each other",
    )
    assert "local-syncer" not in pipeline.plugins
    assert profile_names(pipeline) == {"p": ([], [("queue-scorer", 1.0)], "max-score-picker")}


# --- what decisions cost -----------------------------------------------------------


def test_every_decision_is_timed_and_its_plugins_once_in_sixteen(tmp_path: Path) -> None:
    timings = Timings()
    world = World(tmp_path, timings=timings)
    pipeline = world.pipeline(
        """
        plugins:
        - {type: label-selector-filter, name: zone}
        - {type: counting-scorer, name: mine}
        - {type: prefix-cache-scorer}
        """
    )
    request, endpoints = build.request(), (build.endpoint("a"), build.endpoint("b"))
    for _ in range(EVERY * 2):
        for enricher in pipeline.enrichers:
            request = enricher.enrich(request, endpoints)  # type: ignore[assignment]
        pipeline.scheduler.pick(request, endpoints)
    assert timings.decisions == 32
    assert pipeline.plugins["mine"].dump_state()["scored"] == 32
    assert sorted(timings.calls) == sorted(
        [
            ("DataProducer", "approx-prefix-cache-producer", "approx-prefix-cache-producer"),
            ("Filter", "label-selector-filter", "zone"),
            ("Scorer", "counting-scorer", "mine"),
            ("Scorer", "prefix-cache-scorer", "prefix-cache-scorer"),
            ("Picker", "max-score-picker", "max-score-picker"),
        ]
        * 2
    )


def test_timed_decisions_are_the_same_decisions() -> None:
    endpoints = [build.endpoint(name, queued=queued) for name, queued in (("a", 3), ("b", 0))]
    for timings in (None, Timings()):
        pipeline = World(timings=timings).pipeline("plugins: [{type: queue-scorer}]")
        picks = [pipeline.scheduler.pick(build.request(), endpoints) for _ in range(EVERY + 1)]
        assert {pick.endpoints[0].name for pick in picks} == {"b"}


def test_a_foreign_plugin_is_guarded_and_its_faults_are_told(tmp_path: Path) -> None:
    world = World(tmp_path)
    pipeline = world.pipeline(counting(fail="score"))
    endpoints = [build.endpoint("a", queued=3), build.endpoint("b")]
    assert pipeline.scheduler.pick(build.request(), endpoints).endpoints[0].name == "b"
    assert world.faults == [("mine", "raised")]
