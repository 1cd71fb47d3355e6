"""Who asks, read from headers and cookies before admission."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from epp import headers
from epp.clock import ManualClock
from epp.flow.gate import Gate
from epp.flow.identity import AgentIdentity, SessionIdProducer
from epp.flow.saturation import UtilizationDetector
from epp.ledger import Ledger
from epp.model import Arrival, InferenceRequest
from epp.pipeline import Pipeline
from epp.pool import Pool
from epp.router import Router
from epp.rules import Rules
from epp.schedule.handlers.single import SingleProfileHandler
from epp.schedule.pickers.random import RandomPicker
from epp.schedule.profile import Profile
from epp.schedule.scheduler import Scheduler
from tests.support import build


def prepare(cls: type[Any], sent: dict[str, str], flow: str = headers.DEFAULT_FLOW, **params: Any):
    plugin = cls(msgspec.convert(params, cls.Params), build.tools())
    return plugin.prepare(build.request(headers=sent, flow=flow))


@pytest.mark.parametrize(
    ("sent", "flow"),
    [
        pytest.param({"session_id": "4", "session-id": "3"}, "3", id="codex"),
        pytest.param(
            {"session-id": "3", "x-session-affinity": "2", "x-claude-code-session-id": "1"},
            "1",
            id="in order",
        ),
        pytest.param({"x-claude-code-session-id": " ", "session_id": "4"}, "4", id="blank"),
        pytest.param({}, headers.DEFAULT_FLOW, id="none"),
        pytest.param({"session-id": "x" * 257}, headers.DEFAULT_FLOW, id="far too long"),
    ],
)
def test_an_agents_session_becomes_its_flow(sent: dict[str, str], flow: str) -> None:
    assert prepare(AgentIdentity, sent).flow == flow


def test_a_flow_that_the_request_names_stays() -> None:
    prepared = prepare(AgentIdentity, {"session-id": "s"}, flow="tenant")
    assert (prepared.flow, prepared.session) == ("tenant", "s")


def test_own_headers_come_first() -> None:
    sent = {"x-mine": "0", "x-claude-code-session-id": "1"}
    assert prepare(AgentIdentity, sent, additionalSessionHeaders=["X-Mine"]).flow == "0"


@pytest.mark.parametrize(
    ("params", "sent", "session"),
    [
        pytest.param({}, {"x-session-id": "s"}, "s", id="default header"),
        pytest.param({"headerName": "X-Me"}, {"x-me": "s", "x-session-id": "t"}, "s", id="header"),
        pytest.param({"cookieName": "sid"}, {"cookie": "a=b; sid=s"}, "s", id="cookie"),
        pytest.param({"cookieName": "sid"}, {"cookie": "a=b"}, "", id="another cookie"),
        pytest.param({"cookieName": "sid"}, {"x-session-id": "t"}, "", id="no cookie"),
        pytest.param({"cookieName": "sid"}, {"cookie": "\x00=;;==,,"}, "", id="no sense"),
    ],
)
def test_session_id_producer(params: dict[str, str], sent: dict[str, str], session: str) -> None:
    assert prepare(SessionIdProducer, sent, **params).session == session


def test_session_id_producer_wants_one_source() -> None:
    with pytest.raises(ValueError, match="not both"):
        prepare(SessionIdProducer, {}, headerName="a", cookieName="b")


class Bare:
    """A format that reads nothing."""

    def parse(self, arrival: Arrival, now: float) -> InferenceRequest:
        return build.request(headers=arrival.headers)


class NotingGate(Gate):
    """Lets everything through and notes the flow it was asked about."""

    def __init__(self) -> None:
        super().__init__(UtilizationDetector(UtilizationDetector.Params(), build.tools()))
        self.flows: list[str] = []

    def must_wait(self, request: InferenceRequest, endpoints: Any) -> bool:
        self.flows.append(request.flow)
        return super().must_wait(request, endpoints)


def test_the_gate_sees_the_agents_flow() -> None:
    tools, gate, pool = build.tools(), NotingGate(), Pool()
    pool.put(build.endpoint())
    picker = RandomPicker(RandomPicker.Params(), tools)
    handler = SingleProfileHandler(SingleProfileHandler.Params(), tools)
    pipeline = Pipeline(
        formats=Bare(),
        rules=Rules(lambda request, target_model: request),
        gate=gate,
        screeners=(),
        enrichers=(),
        admitters=(),
        scheduler=Scheduler({"only": Profile("only", (), (), picker)}, handler),
        observers=(),
        preparers=(AgentIdentity(AgentIdentity.Params(), tools),),
    )
    router = Router(
        pool, pipeline, Ledger(), clock=ManualClock(), on_observer_error=lambda _, error: None
    )
    arrival = Arrival("r", {"x-claude-code-session-id": "s-1"})
    exchange = asyncio.run(router.route(arrival))
    assert gate.flows == ["s-1"]
    assert (exchange.request.flow, exchange.request.session) == ("s-1", "s-1")
