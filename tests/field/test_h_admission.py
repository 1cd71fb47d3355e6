"""Problems that endpoint pickers had in the field with queues and what is counted for them.

Nothing waits in the picker: a request goes on or is refused in the turn in which it was read.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import pytest

from epp.errors import EppError, NoEndpoints, Overloaded, Saturated
from epp.exchange import Exchange
from epp.extproc.budget import BodyBudget
from epp.extproc.messages import Body, Head, Side
from epp.extproc.session import Session
from epp.headers import FAIRNESS_ID, OBJECTIVE, PREFILLER
from epp.model import Arrival, EndpointId, Outcome
from epp.router import Router
from epp.rules import RuleBook, Table
from epp.serve.counts import watch_pipeline
from epp.telemetry.metrics import Metrics
from tests.support import build
from tests.support.pipelines import World
from tests.support.replayed import CONFIGS

MOST = 4  #: requests at once that fill an endpoint
FULL_BY_COUNT = f"""
plugins:
- {{type: concurrency-detector, parameters: {{maxConcurrency: {MOST}}}}}
flowControl: {{saturationDetector: {{pluginRef: concurrency-detector}}}}
"""
POST = {":method": "POST", ":path": "/v1/completions", "content-type": "application/json"}
ASKED = b'{"model":"m","prompt":"hello"}'
URGENT, SHEDDABLE = "urgent", "batch"


class Line:
    """A router with its pipeline, and objectives of three priorities."""

    def __init__(self, config: str = FULL_BY_COUNT) -> None:
        book = RuleBook(Table(priorities={URGENT: 10, SHEDDABLE: -1}))
        world = World(book=book)
        self.pool, self.ledger = world.pool, world.parts.ledger
        self.pipeline = world.pipeline(config)
        self.router = Router(
            self.pool, self.pipeline, self.ledger, clock=world.parts.clock, on_observer_error=_fail
        )

    def ask(self, objective: str = "", *, flow: str = "", body: bytes = ASKED) -> Exchange:
        told = {OBJECTIVE[0]: objective, FAIRNESS_ID[0]: flow}
        headers = POST | {name: value for name, value in told.items() if value}
        return at_once(self.router.route(Arrival("r-1", headers, body)))

    def saturation(self) -> list[float]:
        """What the gauge shows."""
        metrics = Metrics(process=False)
        watch_pipeline(metrics, lambda: self.pipeline, self.pool)
        metrics.refresh()
        lines = metrics.render()[0].decode().splitlines()
        told = [
            each for each in lines if each.startswith("llm_d_epp_flow_control_pool_saturation{")
        ]
        return [float(each.split()[-1]) for each in told]


def _fail(_observer: object, error: Exception) -> None:
    raise error


def at_once(work: Coroutine[Any, Any, Exchange]) -> Exchange:
    """Run ``work``, which may not wait even for another turn of a loop."""
    try:
        work.send(None)
    except StopIteration as done:
        found: Exchange = done.value
        return found
    work.close()
    pytest.fail("the request waits")


@pytest.mark.parametrize("objective", ["", URGENT, SHEDDABLE])
def test_b147_without_endpoints_nothing_waits_that_a_queue_could_forget(objective: str) -> None:
    """Queued requests of an idle flow vanished (gateway-api-inference-extension#1982)."""
    line = Line()
    with pytest.raises(NoEndpoints):
        line.ask(objective, flow="idle")
    line.pool.put(build.endpoint("a"))
    line.ask(objective, flow="idle").end(Outcome.COMPLETED)
    assert line.ledger.get(EndpointId("a")).requests == 0


def test_b148_bodies_that_are_held_are_bounded_in_bytes_and_all_given_back() -> None:
    """A queue's limit in bytes was never enforced (gateway-api-inference-extension PR 2103)."""
    budget, size = BodyBudget(1_000_000), 200_000
    held, refused = [], 0
    for number in range(20):
        session = Session(max_body_bytes=size, budget=budget, new_id=lambda: "made-up")
        session.receive(Head(Side.REQUEST, POST | {"x-request-id": str(number)}))
        try:
            session.receive(Body(Side.REQUEST, bytes(size), ends=True))
        except Overloaded as error:
            assert (error.status, error.reason) == (503, "rejected-saturated")
            refused += 1
        held.append(session)
    assert (refused, budget.used) == (15, 1_000_000)
    for session in held:
        session.free()
    assert budget.used == 0


def test_b150_a_pool_is_full_when_as_many_requests_are_open_as_it_may_have() -> None:
    """Saturation was always 0: copies were counted (llm-d/llm-d-router#1474)."""
    line = Line()
    line.pool.put(build.endpoint("a"))
    line.pool.put(build.endpoint("b", host="10.0.0.2"))
    opened = []
    for count in range(2 * MOST):
        assert line.saturation() == [count / (2 * MOST)]
        opened.append(line.ask(SHEDDABLE))
    assert line.saturation() == [1.0]
    with pytest.raises(Saturated):
        line.ask(SHEDDABLE)
    opened.pop().end(Outcome.ABANDONED)
    opened.append(line.ask(SHEDDABLE))
    for exchange in opened:
        exchange.end(Outcome.COMPLETED)
    assert line.saturation() == [0.0]


def test_b151_a_full_pool_is_busy_and_an_empty_one_cannot_serve() -> None:
    """A request that was dropped got 503 though endpoints served (llm-d/llm-d-router#2046)."""
    line = Line()

    def refusal() -> tuple[int, str]:
        with pytest.raises(EppError) as raised:
            line.ask(SHEDDABLE)
        return raised.value.status, raised.value.reason

    assert refusal() == (503, "rejected-no-endpoints")
    line.pool.put(build.endpoint("a"))
    for _ in range(MOST):
        line.ask()
    assert refusal() == (429, "rejected-saturated")
    line.pool.remove(EndpointId("a"))
    assert refusal() == (503, "rejected-no-endpoints")


def test_b154_requests_of_many_flows_that_come_and_go_are_all_served() -> None:
    """A flow was removed while a request entered it (gateway-api-inference-extension#2039)."""
    line = Line()
    line.pool.put(build.endpoint("a"))
    opened: list[Exchange] = []
    for number in range(2000):
        opened.append(line.ask(flow=f"flow-{number % 50}"))
        if number % 3:
            opened.pop(0).end(Outcome.COMPLETED)
    for exchange in opened:
        exchange.end(Outcome.COMPLETED)
    assert line.ledger.get(EndpointId("a")).requests == 0


def test_b157_of_a_full_pool_no_request_waits_behind_those_that_matter_more() -> None:
    """Low priority never ran under steady load (gateway-api-inference-extension#1861)."""
    line = Line()
    line.pool.put(build.endpoint("a"))
    for _ in range(5 * MOST):
        line.ask(URGENT)
    line.ask()
    with pytest.raises(Saturated, match="the request is sheddable"):
        line.ask(SHEDDABLE)


def test_b140_between_the_choice_of_a_prefill_and_the_decode_s_dispatch_nothing_waits() -> None:
    """Blocks expired before they were read (vllm-project/aibrix#1772)."""
    line = Line((CONFIGS / "shapes" / "disaggregated.yaml").read_text())
    for name, host in (("prefill", "10.0.0.1"), ("decode", "10.0.0.2")):
        line.pool.put(build.endpoint(name, host=host, labels={"llm-d.ai/role": name}))
    exchange = line.ask(body=b'{"model":"m","prompt":"%s"}' % (b"a long prompt " * 500))
    assert exchange.sent.destination == "10.0.0.2:8000"
    assert exchange.sent.headers[PREFILLER] == "10.0.0.1:8000"
    exchange.end(Outcome.COMPLETED)
