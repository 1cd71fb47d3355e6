"""Runs a scenario: by hand from Python, or for ``epp sim``."""

from __future__ import annotations

from collections.abc import Callable

from epp.sim.baselines.catalog import policy_of
from epp.sim.demand.traffic import Demand, demand_of
from epp.sim.fleet.scenario import Scenario
from epp.sim.fleet.story import Outcome
from epp.sim.fleet.world import World


def run(
    scenario: Scenario,
    policy: str = "",
    *,
    demand: Demand | None = None,
    seed: int | None = None,
    tell: Callable[[int, int], None] | None = None,
) -> Outcome:
    """Simulate ``scenario`` once.

    Args:
        scenario: what is simulated.
        policy: a known name or a configuration file, instead of the scenario's.
        demand: what is asked, instead of what the scenario's traffic says.
        seed: instead of the scenario's.
        tell: is told how many requests are over, and of how many.

    Raises:
        ConfigError: the policy or the engines cannot be had.
        TraceError: the traffic cannot be had.
    """
    number = scenario.seed if seed is None else seed
    if demand is None:
        demand = demand_of(scenario.traffic, number)
    chosen = policy_of(policy or scenario.policy)
    more = {} if tell is None else {"tell": tell}
    return World(scenario, chosen, demand, seed=number, **more).run()
