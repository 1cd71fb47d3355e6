"""Replicas of the picker that tell each other, in a simulated fleet. Out: what they tell."""

from __future__ import annotations

import msgspec
import pytest

from epp.sim.baselines.catalog import policy_of
from epp.sim.demand.traffic import demand_of
from epp.sim.fleet.run import run
from epp.sim.fleet.scenario import Pickers, Pods, Scenario, Traffic
from epp.sim.fleet.world import World

SCENARIO = Scenario(
    fleet=(Pods(count=4, start_seconds=1.0),),
    pickers=Pickers(replicas=4, scrape_seconds=0.5),
    traffic=Traffic(preset="chat", seconds=300.0, requests=250, rate=8.0),
)


def with_peers(seconds: float | None) -> Scenario:
    pickers = msgspec.structs.replace(SCENARIO.pickers, peers_seconds=seconds)
    return msgspec.structs.replace(SCENARIO, pickers=pickers)


def cached(policy: str, scenario: Scenario = SCENARIO) -> list[int]:
    stories = run(scenario, policy, seed=3).stories
    return [story.cached_tokens for story in stories]


def test_what_others_sent_is_found_and_nothing_stays_booked() -> None:
    world = World(SCENARIO, policy_of("best"), demand_of(SCENARIO.traffic, 3), seed=3)
    told = sum(story.cached_tokens for story in world.run().stories)
    assert told > 1.1 * sum(cached("best-alone"))
    for replica in world.replicas:
        assert len(replica.hearing) == 0
        assert all(c.requests == c.heard == 0 for c in replica.ledger.all().values())


def test_the_same_seed_tells_the_same() -> None:
    assert cached("best") == cached("best")


@pytest.mark.parametrize("policy", ["llm-d-2-2-3", "least-request", "best-alone"])
def test_other_routers_replicas_tell_each_other_nothing(policy: str) -> None:
    assert cached(policy) == cached(policy, with_peers(None))


def test_nothing_is_told_where_the_scenario_says_so() -> None:
    assert cached("best", with_peers(None)) == cached("best-alone")
