"""From a configuration to a pipeline, and what a second configuration leaves as it is."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from epp.build import Parts, configure, retire
from epp.catalog import Catalog
from epp.clock import ManualClock
from epp.errors import ConfigError
from epp.ledger import Ledger
from epp.model import Arrival, EndpointId
from epp.pipeline import Pipeline
from epp.plugin import Observer
from epp.pool import Pool
from epp.timed import EVERY
from tests.support import build

OWN = """
from epp import plugin

class Counting:
    type = "counting-scorer"
    class Params(plugin.Params, frozen=True):
        fail: str = ""
        helper: str = ""
    @staticmethod
    def refs(params):
        if params.fail == "refs":
            raise RuntimeError("refs are broken")
        return [params.helper] if params.helper else []
    def __init__(self, params, tools):
        if params.fail == "value":
            raise ValueError("fail must not be set")
        if params.fail == "bug":
            raise KeyError("oops")
        self.scored = 0
        self.fail = params.fail
        self.helper = tools.plugins.get(params.helper)
        self.forgotten = []
    def score(self, request, endpoints):
        self.scored += 1
        if self.fail == "score":
            raise RuntimeError("no score")
        return [0.5] * len(endpoints)
    def forget(self, endpoint_id):
        self.forgotten.append(endpoint_id)
    def __len__(self):
        return 0
    def dump_state(self):
        return {"scored": self.scored, "forgotten": len(self.forgotten),
                "helper": self.helper is not None}
"""

PLAIN = """
plugins:
- type: queue-scorer
- type: prefix-cache-scorer
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: prefix-cache-scorer, weight: 3}
  - {pluginRef: queue-scorer, weight: 0}
"""


class Timings:
    def __init__(self) -> None:
        self.decisions = 0
        self.calls: list[tuple[str, str, str]] = []

    def scheduled(self, seconds: float) -> None:
        self.decisions += 1

    def plugin_ran(self, point: str, kind: str, name: str, seconds: float) -> None:
        self.calls.append((point, kind, name))


class World:
    def __init__(self, folder: Path | None = None, **more: Any) -> None:
        paths = []
        if folder is not None:
            (folder / "own.py").write_text(OWN)
            paths = [str(folder / "own.py")]
        self.pool = Pool()
        self.faults: list[tuple[str, str]] = []
        self.parts = Parts(
            clock=ManualClock(),
            random=random.Random(0),
            ledger=Ledger(),
            pool=self.pool,
            catalog=Catalog(paths),
            on_fault=lambda name, kind: self.faults.append((name, kind)),
            **more,
        )

    def pipeline(self, text: str | None, previous: Pipeline | None = None) -> Pipeline:
        return configure(text, self.parts, previous=previous)[1]

    def error(self, text: str, previous: Pipeline | None = None) -> str:
        with pytest.raises(ConfigError) as raised:
            self.pipeline(text, previous)
        return str(raised.value)


def counting(**parameters: object) -> str:
    return (
        f"plugins: [{{type: counting-scorer, name: mine, parameters: {parameters!r}}}, "
        "{type: queue-scorer, name: other}]"
    )


def profile_names(pipeline: Pipeline) -> dict[str, Any]:
    names = {id(made): name for name, made in pipeline.plugins.items()}
    return {
        profile.name: (
            [names[id(each)] for each in profile.filters],
            [(names[id(each)], weight) for each, weight in profile.scorers],
            names[id(profile.picker)],
        )
        for profile in pipeline.scheduler.profiles.values()
    }


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
            "plugin 'queue-scorer' is no parser",
            id="wrong kind: parser",
        ),
        pytest.param(
            "plugins: [{type: queue-scorer}]\n"
            "flowControl: {saturationDetector: {pluginRef: queue-scorer}}",
            "plugin 'queue-scorer' is no detector",
            id="wrong kind: detector",
        ),
        pytest.param(
            "plugins: [{type: random-picker}, {type: max-score-picker}]",
            "profile 'default' needs one picker, found ['random-picker', 'max-score-picker']",
            id="two pickers",
        ),
        pytest.param(
            "plugins: [{type: single-profile-handler}, {type: queue-scorer}]\n"
            "schedulingProfiles: [{name: a, plugins: []}, {name: b, plugins: []}]",
            "single-profile-handler runs one profile, but several are configured",
            id="two profiles, one run",
        ),
        pytest.param(
            "plugins: [{type: queue-scorer, parameters: {x: 1}}]",
            "Object contains unknown field `x` - at `$.plugins[0].parameters`",
            id="unknown parameter",
        ),
        pytest.param(
            "plugins: [{type: approx-prefix-cache-producer, parameters: {blockSizeToken: 5}}]",
            "Object contains unknown field `blockSizeToken`, did you mean `blockSizeTokens`? - at "
            "`$.plugins[0].parameters`",
            id="misspelt parameter",
        ),
        pytest.param(
            "plugins: [{type: approx-prefix-cache-producer, parameters: {blockSizeTokens: no}}]",
            "Expected `int`, got `bool` - at `$.plugins[0].parameters.blockSizeTokens`",
            id="wrong type of a parameter",
        ),
        pytest.param(
            "plugins: [{type: latency-scorer}]",
            "plugin type 'latency-scorer': latency prediction is not supported yet; use "
            "in-flight-load-scorer - at `$.plugins[0].type`",
            id="not supported",
        ),
        pytest.param(
            counting(fail="value"), "plugin 'mine': fail must not be set", id="a constructor"
        ),
        pytest.param(counting(fail="bug"), "plugin 'mine': KeyError: 'oops'", id="a bug"),
        pytest.param(
            counting(fail="refs"), "plugin 'mine': RuntimeError: refs are broken", id="bad refs"
        ),
        pytest.param(
            counting(helper="othr"),
            "plugin 'mine' refers to 'othr', which is not configured, did you mean 'other'?",
            id="unknown reference of a plugin",
        ),
        pytest.param(
            counting(helper="mine"),
            "plugins refer to each other in a circle: mine -> mine",
            id="a circle",
        ),
    ],
)
def test_what_is_wrong_is_said_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    assert World(tmp_path).error(text) == said


def test_an_ignored_type_is_warned_of_and_left_out_of_the_profiles() -> None:
    pipeline = World().pipeline(
        "plugins: [{type: local-syncer}, {type: queue-scorer}]\n"
        "schedulingProfiles: [{name: p, plugins: [{pluginRef: local-syncer}, "
        "{pluginRef: queue-scorer}]}]"
    )
    assert pipeline.warnings == ("plugin 'local-syncer' is ignored: replicas share nothing yet",)
    assert "local-syncer" not in pipeline.plugins
    assert profile_names(pipeline) == {"p": ([], [("queue-scorer", 1.0)], "max-score-picker")}


# --- a second configuration --------------------------------------------------------


def learned(pipeline: Pipeline) -> int:
    return int(pipeline.plugins["approx-prefix-cache-producer"].dump_state()["blocks"])


def learn(pipeline: Pipeline) -> None:
    """Route one prompt of 100 blocks of 64 tokens, four bytes each, to an endpoint."""
    body = b'{"model":"m","prompt":"' + b"x" * 64 * 4 * 100 + b'"}'
    arrival = Arrival("r", {":path": "/v1/completions"}, body)
    request = pipeline.formats.parse(arrival, 0.0)
    for enricher in pipeline.enrichers:
        request = enricher.enrich(request, (build.endpoint("a"),))  # type: ignore[assignment]
    for observer in pipeline.observers:
        observer.picked(request, build.pick("a"))


def test_an_unchanged_plugin_is_carried_over_with_what_it_learned() -> None:
    world = World()
    first = world.pipeline(PLAIN)
    learn(first)
    assert learned(first) == 100
    second = world.pipeline(PLAIN.replace("weight: 3", "weight: 5"), first)
    assert learned(second) == 100
    for name, made in first.plugins.items():
        assert second.plugins[name] is made, name
    assert profile_names(second)["default"][1] == [("prefix-cache-scorer", 5.0)]


def test_a_changed_plugin_is_built_anew_and_the_old_one_is_left_as_it_was() -> None:
    world = World()
    first = world.pipeline(PLAIN)
    learn(first)
    more = "- {type: approx-prefix-cache-producer, parameters: {maxPrefixTokensToMatch: 99}}\n"
    second = world.pipeline(PLAIN.replace("schedulingP", more + "schedulingP"), first)
    assert learned(second) == 0
    assert learned(first) == 100
    assert second.plugins["prefix-cache-scorer"] is first.plugins["prefix-cache-scorer"]


def test_the_same_type_under_another_name_is_another_plugin() -> None:
    world = World()
    first = world.pipeline("plugins: [{type: queue-scorer, name: one}]")
    second = world.pipeline("plugins: [{type: queue-scorer, name: two}]", first)
    assert second.plugins["two"] is not first.plugins["one"]
    assert "one" not in second.plugins


def test_a_plugin_whose_reference_changed_is_built_anew(tmp_path: Path) -> None:
    world = World(tmp_path)
    first = world.pipeline(counting(helper="other"))
    same = world.pipeline(counting(helper="other"), first)
    assert same.plugins["mine"] is first.plugins["mine"]
    changed = counting(helper="other").replace("queue-scorer", "random-picker")
    second = world.pipeline(changed, first)
    assert second.plugins["other"] is not first.plugins["other"]
    assert second.plugins["mine"] is not first.plugins["mine"]


def test_a_plugin_that_calls_itself_empty_is_carried_over_all_the_same(tmp_path: Path) -> None:
    world = World(tmp_path)
    first = world.pipeline(counting())
    first.plugins["mine"].score(build.request(), (build.endpoint(),))
    second = world.pipeline(counting(), first)
    assert second.plugins["mine"].dump_state()["scored"] == 1


def test_a_failing_constructor_changes_nothing(tmp_path: Path) -> None:
    world = World(tmp_path)
    first = world.pipeline(counting())
    retire(None, first, world.pool)
    before = dict(first.plugins)
    assert "oops" in world.error(counting(fail="bug"), first)
    assert dict(first.plugins) == before
    world.pool.put(build.endpoint("a"))
    world.pool.remove(EndpointId("a"))
    assert first.plugins["mine"].dump_state()["forgotten"] == 1


def forgotten(pipelines: Mapping[str, Pipeline]) -> dict[str, int]:
    return {
        name: pipeline.plugins["mine"].dump_state()["forgotten"]
        for name, pipeline in pipelines.items()
    }


def test_only_the_plugins_in_use_hear_of_lost_endpoints_and_each_once(tmp_path: Path) -> None:
    world = World(tmp_path)
    first = world.pipeline(counting())
    retire(None, first, world.pool)
    same = world.pipeline(counting(), first)
    retire(first, same, world.pool)
    world.pool.put(build.endpoint("a"))
    world.pool.remove(EndpointId("a"))
    assert forgotten({"first": first, "same": same}) == {"first": 1, "same": 1}

    other = world.pipeline(counting(helper="other"), same)
    retire(same, other, world.pool)
    world.pool.put(build.endpoint("a"))
    world.pool.remove(EndpointId("a"))
    assert forgotten({"same": same, "other": other}) == {"same": 1, "other": 1}


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
