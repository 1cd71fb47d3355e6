"""Prompts that one engine computes and another one decodes, in whole runs of small fleets.

Sizes are worked out by hand: an idle engine of the profile computes a prompt in 1.2 times a1, a2 and
d0, and 1 ms; a cache of 131,072 bytes a token takes its bytes over the link and the latency.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from epp.recording.record import Record
from epp.sim.baselines.catalog import policy_of
from epp.sim.demand.traffic import Demand, demand_from
from epp.sim.fleet.run import run
from epp.sim.fleet.scenario import Scenario, Traffic, scenario_of
from epp.sim.fleet.story import Story
from epp.sim.fleet.world import World
from epp.sim.split.policies import SPLITTING
from epp.traffic.trace import Trace

BLOCK = 64
TOKENS = 6400
COMPUTED = 1.2 * (20.2e-6 * TOKENS + 0.79e-9 * TOKENS * TOKENS / 2 + 6.4e-3) + 1e-3
LAST_TOKEN = 0.01  #: of the step that computes the last token of a prompt again, at most
FLEET = """\
fleet:
- {count: 1, role: prefill, labels: {topology.kubernetes.io/rack: a}}
- {count: 1, role: decode, labels: {topology.kubernetes.io/rack: RACK}}
traffic: {preset: chat}
"""


CONNECTORS = ["nixlv2", "shared-storage", "mooncake", "sglang"]


@pytest.fixture(params=CONNECTORS)
def connector(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def always(connector: str, tmp_path: Path) -> str:
    """File of a policy that computes each prompt elsewhere, by one connector after the other."""
    path = tmp_path / f"{connector}.yaml"
    client = "- type: prefill-client\n"
    told = f"{client}  parameters: {{connector: {connector}}}\n"
    path.write_text(SPLITTING["pd-always"][0].replace(client, told))
    return str(path)


def scenario(text: str = "", rack: str = "b") -> Scenario:
    return scenario_of(FLEET.replace("RACK", rack) + text)


def asked(*times: float, tokens: int = TOKENS, output: int = 20) -> Demand:
    """Prompts that share nothing."""
    records = tuple(
        Record(
            at=at, input_tokens=tokens, output_tokens=output, runs=((1000 * i, tokens // BLOCK),)
        )
        for i, at in enumerate(times)
    )
    return demand_from(Trace(records, BLOCK), Traffic(preset="chat"), 1)


def only(found: Scenario, policy: str) -> Story:
    (story,) = run(found, policy, demand=asked(0.0)).stories
    return story


@pytest.mark.parametrize(("rack", "bytes_per_second"), [("a", 25e9), ("b", 12e9)])
def test_a_prompt_computed_elsewhere_costs_the_prefill_and_the_way_of_its_cache(
    rack: str, bytes_per_second: float, always: str
) -> None:
    story = only(scenario(rack=rack), always)
    moved = 0.02 + TOKENS * 131072 / bytes_per_second
    assert (story.prefill_pod, story.pod, story.outcome) == (0, 1, "ok")
    assert story.ttft is not None
    assert COMPUTED + moved < story.ttft < COMPUTED + moved + LAST_TOKEN


def test_never_and_a_short_prompt_are_computed_where_they_are_decoded() -> None:
    assert only(scenario(), "pd-never").prefill_pod == -1
    short = run(scenario(), "pd-2048", demand=asked(0.0, tokens=1024)).stories[0]
    assert (short.prefill_pod, short.pod) == (-1, 1)
    assert only(scenario(), "pd-2048").prefill_pod == 0


def test_decoding_goes_on_undisturbed_while_another_engine_computes_a_prompt() -> None:
    def slowest(policy: str) -> float:
        demand = asked(0.0, 0.8, output=200)
        first = run(scenario(), policy, demand=demand).stories[0]
        assert first.tpot is not None
        return first.tpot * 199

    assert slowest("pd-never") - slowest("pd-always") == pytest.approx(COMPUTED, rel=0.15)


def test_a_prefill_engine_that_dies_leaves_the_prompt_to_the_one_that_decodes(
    connector: str, always: str
) -> None:
    found = scenario(f"changes: [{{do: crash, at: {COMPUTED / 2}, pods: 1}}]\n")
    story = only(found, always)
    if connector == "sglang":  # which waits for it already, and is told to give up
        assert (story.outcome, story.prefill_pod, story.ended_at) == ("failed", -1, COMPUTED / 2)
        return
    assert (story.outcome, story.prefill_pod) == ("ok", -1)
    assert story.ttft == pytest.approx(COMPUTED * 1.5, rel=0.05)


def test_the_engine_that_decodes_has_a_request_from_the_start_only_if_legs_run_at_once(
    connector: str, always: str
) -> None:
    _, meanwhile, *_ = run(scenario(), always, demand=asked(1.0 - COMPUTED / 2)).moments
    assert meanwhile.requests == (1, 1 if connector == "sglang" else 0)


@pytest.mark.parametrize(
    "transfers", ["failures: 1.0", "lease_seconds: 0.00001"], ids=["errors", "lease is over"]
)
def test_whatever_goes_wrong_costs_time_and_never_an_answer(transfers: str, always: str) -> None:
    stories = run(
        scenario(f"transfers: {{{transfers}}}\n"), always, demand=asked(0.0, 0.1, 0.2)
    ).stories
    assert [(each.outcome, each.prefill_pod) for each in stories] == [("ok", -1)] * 3


def test_a_sidecar_is_told_by_header_and_does_the_same(tmp_path: Path) -> None:
    path = tmp_path / "sidecar.yaml"
    path.write_text(SPLITTING["pd-always"][0].replace("- type: prefill-client\n", ""))
    mine, its = only(scenario(), "pd-always"), only(scenario(), str(path))
    assert (its.prefill_pod, its.ttft) == (mine.prefill_pod, pytest.approx(mine.ttft))


@pytest.mark.parametrize(
    "text",
    [f"client_timeout_seconds: {COMPUTED / 2}", "client_timeout_seconds: 0.6", "seed: 1"],
    ids=["clients leave within the prefill", "clients leave later", "all are answered"],
)
def test_nothing_is_left_in_any_engine_or_ledger_when_all_is_over(
    text: str, connector: str, always: str
) -> None:
    found = scenario(f"{text}\n")
    world = World(found, policy_of(always), asked(0.0, 0.1, 1.0), seed=1)
    outcomes = {each.outcome for each in world.run().stories}
    assert outcomes <= {"ok", *(["abandoned"] if "client" in text else [])}
    pods = list(world.members.pods.values())
    assert [pod.sent for pod in pods] == [0, 0]
    assert [pod.engine.ids() for pod in pods] == [(), ()]
    assert [pod.engine.cache.used for pod in pods] == [0, 0]
    (replica,) = world.replicas
    assert [replica.ledger.get(pod.endpoint_id).requests for pod in pods] == [0, 0]
