"""Whether a prompt is computed elsewhere pays where it is asked each time, and only there."""

from __future__ import annotations

from functools import cache

import pytest

from epp.sim.fleet.run import run
from epp.sim.fleet.scenario import scenario_of
from epp.sim.report.figures import Summary, summarize
from epp.sim.report.seeds import compared

ROLES = "[{count: 2, role: prefill}, {count: 2, role: decode}]"
NO_ROLES = "[{count: 4, role: prefill-decode}]"
SEEDS = (1, 2)


@cache
def runs(policy: str, fleet: str = ROLES) -> tuple[Summary, ...]:
    """Four short questions for each long document; the same for all policies."""
    scenario = scenario_of(
        f"fleet: {fleet}\ntraffic: {{preset: short-and-long, seconds: 30, rate: 0.75}}\n"
        "goals: {ttft_seconds: 1, tpot_seconds: 0.03}\n"
    )
    return tuple(summarize(run(scenario, policy, seed=seed), scenario.goals) for seed in SEEDS)


@pytest.mark.parametrize("other", ["pd-always", "pd-never"])
def test_asked_each_time_first_tokens_come_sooner_and_more_answers_are_good(other: str) -> None:
    changes = {each.name: each.change for each in compared(runs(other), runs("pd-pair"))}
    assert max(changes["ttft_p50"].values) < 0.0  # with every seed
    assert max(changes["ttft_p90"].values) < 0.0
    assert min(changes["goodput"].values) > 0.0
    assert all(0.0 < each.routing.elsewhere < 0.3 for each in runs("pd-pair"))


def test_where_every_engine_decodes_too_nothing_is_gained_and_so_nothing_is_moved() -> None:
    assert max(each.routing.elsewhere for each in runs("pd-pair", NO_ROLES)) < 0.02
