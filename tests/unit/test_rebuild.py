"""What a second configuration leaves as it is, and what it builds anew."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from epp.model import Arrival, EndpointId
from epp.pipeline import Pipeline, retire
from tests.support import build
from tests.support.pipelines import PLAIN, World, counting, profile_names


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
