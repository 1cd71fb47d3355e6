"""Whole runs of small fleets: what must hold of any simulation, whatever the policy."""

from __future__ import annotations

import pytest

from epp.errors import ConfigError
from epp.recording.record import Record
from epp.sim.baselines.catalog import POLICIES
from epp.sim.demand.traffic import Demand, demand_from
from epp.sim.fleet.pod import config_of
from epp.sim.fleet.run import run
from epp.sim.fleet.scenario import Goals, Scenario, Traffic, scenario_of
from epp.sim.fleet.story import Story
from epp.sim.report.figures import summarize
from epp.traffic.trace import Trace

BLOCK = 64


def conversations(count: int, turns: int = 3, families: int = 3) -> Demand:
    """Conversations that share one of a few prefixes and go on every four seconds."""
    records = []
    for talk in range(count):
        for turn in range(turns):
            shared = ((talk % families) * 1000, 10)
            own = (100_000 + talk * 1000, 5 * (turn + 1))
            records.append(
                Record(
                    at=talk * 0.2 + turn * 4.0,
                    input_tokens=BLOCK * (15 + 5 * turn) + 3,
                    output_tokens=40,
                    runs=(shared, own),
                    session=f"s{talk}",
                )
            )
    ordered = tuple(sorted(records, key=lambda record: record.at))
    return demand_from(Trace(ordered, BLOCK), Traffic(preset="chat"), 1)


def scenario(text: str = "") -> Scenario:
    return scenario_of(
        "fleet: [{count: 3, profile: llama-3.1-8b-h100, kv_tokens: 30000, start_seconds: 2}]\n"
        "traffic: {preset: chat}\n" + text
    )


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_every_policy_answers_everything_and_the_same_seed_gives_the_same(policy: str):
    demand = conversations(8)
    one = run(scenario(), policy, demand=demand, seed=3)
    assert [story.outcome for story in one.stories] == ["ok"] * 24
    assert all(0 <= story.cached_tokens <= story.prompt_tokens for story in one.stories)
    assert all(story.cached_tokens <= story.ideal_tokens for story in one.stories)
    again = run(scenario(), policy, demand=demand, seed=3)
    assert again.stories == one.stories


def test_an_idle_engine_brings_the_first_token_after_its_prefill():
    record = Record(at=0.0, input_tokens=640, output_tokens=11, runs=((0, 10),))
    demand = demand_from(Trace((record,), BLOCK), Traffic(preset="chat"), 1)
    story = run(scenario(), "random", demand=demand).stories[0]
    # a1 20.2 us and a2 0.79 ns a token, d0 6.4 ms: times 1.2, and 1 ms a step.
    prefill = 1.2 * (20.2e-6 * 640 + 0.79e-9 * 640 * 320 + 6.4e-3) + 1e-3
    assert story.ttft == pytest.approx(prefill, rel=1e-3)
    decode = 1.2 * (6.4e-3 + 0.011e-3 + 42e-9 * 646) + 1e-3
    assert story.tpot == pytest.approx(decode, rel=1e-3)


def test_prefix_knowledge_finds_more_than_turns_do():
    demand = conversations(60)
    by_turn = summarize(run(scenario(), "round-robin", demand=demand), Goals())
    by_prefix = summarize(run(scenario(), "llm-d-2-2-3", demand=demand), Goals())
    assert by_prefix.all.hit_rate > by_turn.all.hit_rate + 0.1
    assert by_prefix.all.regret < by_turn.all.regret
    assert by_prefix.routing.flaps < by_turn.routing.flaps


def test_pickers_that_share_nothing_find_less_than_one():
    demand = conversations(60)
    one = summarize(run(scenario(), "llm-d-2-2-3", demand=demand), Goals())
    many = run(scenario("pickers: {replicas: 8}"), "llm-d-2-2-3", demand=demand)
    assert {story.replica for story in many.stories} == set(range(8))
    assert summarize(many, Goals()).all.hit_rate < one.all.hit_rate


def test_events_tell_every_replica_what_is_cached_and_lost_ones_do_not():
    demand = conversations(60)
    pickers = "pickers: {{replicas: 8, events: {{loss: {}}}}}"
    whole = run(scenario(pickers.format(0)), "llm-d-2-2-3-exact", demand=demand)
    lost = run(scenario(pickers.format(1)), "llm-d-2-2-3-exact", demand=demand)
    assert summarize(whole, Goals()).all.hit_rate > summarize(lost, Goals()).all.hit_rate + 0.02


def test_one_engine_of_eight_that_tells_nothing_costs_little_and_all_of_them_much():
    demand = conversations(80, turns=5, families=24)

    def hit_rate(mute: int) -> float:
        fleet = "fleet: [{count: 8, profile: llama-3.1-8b-h100, kv_tokens: 60000}]\n"
        pickers = f"pickers: {{replicas: 4, events: {{mute: {mute}}}}}"
        found = run(scenario_of(f"{fleet}traffic: {{preset: chat}}\n{pickers}"),
                    "llm-d-2-2-3-exact", demand=demand)  # fmt: skip
        return summarize(found, Goals()).all.hit_rate

    whole = hit_rate(0)
    assert whole - hit_rate(1) < 0.02
    assert whole - hit_rate(8) > 0.1


def test_a_crash_fails_what_was_under_way_and_another_engine_takes_its_place():
    demand = conversations(60)
    found = run(scenario("changes: [{do: crash, at: 6}]"), "default", demand=demand)
    outcomes = {story.outcome for story in found.stories}
    assert outcomes == {"ok", "failed"}
    assert len(found.stories) == 180
    assert {moment.pods for moment in found.moments} == {2, 3}
    assert 3 in {story.pod for story in found.stories}


def test_a_rollout_loses_no_request_and_replaces_every_engine():
    demand = conversations(80)
    found = run(scenario("changes: [{do: rollout, at: 1}]"), "default", demand=demand)
    assert {story.outcome for story in found.stories} == {"ok"}
    last = [story.pod for story in found.stories if story.at > 10]
    assert set(last) == {3, 4, 5}


def test_a_fleet_grows_and_shrinks_without_a_failure():
    demand = conversations(80)
    changes = "changes: [{do: add, at: 1, pods: 2}, {do: remove, at: 10, pods: 3}]"
    found = run(scenario(changes), "default", demand=demand)
    assert {story.outcome for story in found.stories} == {"ok"}
    pods = [moment.pods for moment in found.moments]
    assert max(pods) == 5
    assert pods[-1] == 2


def test_a_closed_loop_never_has_more_conversations_under_way():
    text = "fleet: [{count: 2}]\ntraffic: {preset: chat, conversations_at_once: 4}"
    found = run(scenario_of(text), "p2c", demand=conversations(20))
    assert len(found.stories) == 60
    assert max(sum(moment.requests) for moment in found.moments) <= 4


def test_a_client_that_gives_up_is_counted_against_goodput():
    text = "client_timeout_seconds: 0.05"
    found = run(scenario(text), "default", demand=conversations(10, turns=1))
    summary = summarize(found, Goals())
    assert {story.outcome for story in found.stories} == {"abandoned"}
    assert summary.all.goodput == 0.0
    assert summary.all.failed == 10


def test_a_gateway_refuses_requests_beyond_those_it_may_have_under_way():
    demand = conversations(40, turns=1)
    limited = run(scenario("gateway_requests: 1"), "p2c", demand=demand).stories
    free = run(scenario(), "p2c", demand=demand).stories
    assert {story.outcome for story in limited} == {"ok", "shed"}
    assert most_at_once(limited) == 1
    assert most_at_once(free) > 1


def most_at_once(stories: list[Story]) -> int:
    answered = [each for each in stories if each.outcome == "ok"]
    return max(
        sum(other.at <= each.at < (other.ended_at or 0.0) for other in answered)
        for each in answered
    )


EXACT = "llm-d-2-2-3-exact"
TIERS = """
fleet:
- {count: 2, profile: llama-3.1-8b-h100, kv_tokens: 4000, kv_cpu_tokens: %d, kv_disk_tokens: %d, start_seconds: 2}
traffic: {preset: chat}
"""


def test_what_lower_tiers_hold_is_found_and_routed_to():
    """Ten conversations, of which the GPUs hold a few, and a picker that reads events."""
    demand = conversations(10)
    found = {
        tiers: summarize(
            run(scenario_of(TIERS % tiers), EXACT, demand=demand), Goals()
        ).all.hit_rate
        for tiers in ((0, 0), (60_000, 0), (4000, 60_000))
    }
    assert found[60_000, 0] > found[0, 0] + 0.1
    assert found[4000, 60_000] == pytest.approx(found[60_000, 0], abs=0.05)


def test_a_disk_without_a_tier_before_it_is_refused():
    with pytest.raises(ConfigError, match="kv_cpu_tokens"):
        config_of(scenario_of(TIERS % (0, 1000)).fleet[0], BLOCK)
