"""Which endpoints a request may use, and that it is booked. Out: parsing, scoring."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from msgspec import structs

from epp.clock import ManualClock
from epp.errors import NoEndpoints
from epp.exchange import Exchange
from epp.flow.gate import Gate
from epp.ledger import Ledger
from epp.model import Arrival, Endpoint, InferenceRequest, Outcome, Pick
from epp.pipeline import OutputTokens, Pipeline
from epp.plugin import Observer, Profiles
from epp.pool import Pool
from epp.router import Router
from epp.rules import Rules
from epp.schedule.scheduler import Scheduler
from tests.support import build


class Opaque:
    """Reads nothing but a prompt length."""

    def parse(self, arrival: Arrival, now: float) -> InferenceRequest:
        return build.request(
            id=arrival.id, headers=arrival.headers, prompt_tokens=len(arrival.body)
        )


class TakesFirst:
    """Remembers the candidates, takes the first."""

    def __init__(self) -> None:
        self.seen: list[list[str]] = []

    def handle(self, request: InferenceRequest, profiles: Profiles) -> Pick:
        candidates: Sequence[Endpoint] = profiles._endpoints  # type: ignore[attr-defined]
        self.seen.append([endpoint.address for endpoint in candidates])
        return Pick(tuple(candidates[:1]))


class Full:
    def saturation(self, endpoints: Sequence[Endpoint]) -> float:
        return 1.0


def unchanged(request: InferenceRequest, target_model: str) -> InferenceRequest:
    return request


class World:
    def __init__(
        self,
        *endpoints: Endpoint,
        heed_subset: bool = True,
        output: OutputTokens | None = None,
    ) -> None:
        self.handler = TakesFirst()
        self.ledger = Ledger()
        pool = Pool()
        for endpoint in endpoints:
            pool.put(endpoint)
        line = Pipeline(
            formats=Opaque(),
            rules=Rules(unchanged),
            gate=Gate(Full()),
            screeners=(),
            enrichers=(),
            admitters=(),
            scheduler=Scheduler({}, self.handler),
            observers=(),
            output=output,
        )
        self.router = Router(
            pool, line, self.ledger, clock=ManualClock(), on_observer_error=_fail,
            heed_subset=heed_subset,
        )  # fmt: skip

    def route(self, subset: tuple[str, ...] | None = None, body: bytes = b"") -> Exchange:
        return asyncio.run(self.router.route(Arrival("r-1", {}, body, subset)))


def _fail(observer: Observer, error: Exception) -> None:
    raise error


A = build.endpoint("a", host="10.0.0.1", port=8000)
A1 = build.endpoint("a1", host="10.0.0.1", port=8001)
B = build.endpoint("b", host="10.0.0.2", port=8000)
V6 = build.endpoint("v6", host="fd00::1", port=8000)
DOWN = build.endpoint("down", host="10.0.0.9", port=8000, reachable=False)
DRAINING = build.endpoint("draining", host="10.0.0.8", port=8000, draining=True)


@pytest.mark.parametrize(
    ("subset", "candidates"),
    [
        pytest.param(None, ["10.0.0.1:8000", "10.0.0.1:8001", "10.0.0.2:8000", "[fd00::1]:8000"],
                     id="no hint allows the whole pool"),
        pytest.param(("10.0.0.1:8001",), ["10.0.0.1:8001"], id="a port is heeded"),
        pytest.param(("10.0.0.1",), ["10.0.0.1:8000", "10.0.0.1:8001"], id="a host is all its ports"),
        pytest.param(("[fd00::1]:8000", "10.9.9.9:1"), ["[fd00::1]:8000"],
                     id="IPv6 in brackets, strangers ignored"),
        pytest.param(("fd00:0:0::1",), ["[fd00::1]:8000"], id="IPv6 in another spelling"),
        pytest.param(("FD00::0001",), ["[fd00::1]:8000"], id="in capitals, with zeros"),
        pytest.param(("[fd00::1]",), ["[fd00::1]:8000"], id="in brackets without a port"),
        pytest.param(("[fd00:0:0::1]:8000",), ["[fd00::1]:8000"],
                     id="in another spelling with a port"),
        pytest.param(("no:address:at all", "[fd00:0::1]:8000"), ["[fd00::1]:8000"],
                     id="beside what is no address"),
        pytest.param(("10.0.0.9:8000",), ["10.0.0.9:8000"],
                     id="health rules never leave an allowed subset empty"),
    ],
)  # fmt: skip
def test_candidates(subset: tuple[str, ...] | None, candidates: list[str]) -> None:
    world = World(A, A1, B, V6, DOWN, DRAINING)
    world.route(subset)
    assert world.handler.seen == [candidates]


@pytest.mark.parametrize(
    "subset",
    [
        pytest.param((), id="an empty subset"),
        pytest.param(("10.9.9.9:1",), id="nobody of the pool"),
        pytest.param(("10.0.0.1:9",), id="another port"),
        pytest.param(("10.0.0.8:8000",), id="one that drains"),
        pytest.param(("[fd00:0::1]:9",), id="another port of an IPv6 host"),
        pytest.param(("fd00:0::2",), id="another IPv6 host"),
        pytest.param(
            ("[fd00::1", "fd00::1]:8000", "[]:8000", "[fd00::1]8000", "::"), id="broken brackets"
        ),
    ],
)
def test_a_subset_without_a_ready_endpoint_is_503(subset: tuple[str, ...]) -> None:
    with pytest.raises(NoEndpoints):
        World(A, V6, DRAINING).route(subset)


def test_an_endpoint_listed_in_another_spelling_is_found_too() -> None:
    world = World(A, build.endpoint("long", host="fd00:0:0:0:0:0:0:1", port=8000))
    world.route(("[fd00::1]:8000",))
    assert world.handler.seen == [["[fd00:0:0:0:0:0:0:1]:8000"]]


def test_an_empty_pool_is_503() -> None:
    with pytest.raises(NoEndpoints) as raised:
        World().route()
    assert raised.value.status == 503


def test_the_subset_can_be_told_to_be_ignored() -> None:
    world = World(A, heed_subset=False)
    world.route(("10.9.9.9:1",))
    assert world.handler.seen == [["10.0.0.1:8000"]]


def test_a_pick_is_booked_until_its_exchange_ends() -> None:
    world = World(A)
    exchange = world.route(body=b"x" * 12)
    counts = world.ledger.get(A.id)
    assert (counts.requests, counts.tokens) == (1, 12)
    exchange.end(Outcome.ABANDONED)
    exchange.end(Outcome.COMPLETED)
    assert (counts.requests, counts.tokens) == (0, 0)


def test_expected_output_is_booked_with_the_prompt_until_the_answer_is_over() -> None:
    world = World(A, output=lambda request: 2 * request.prompt_tokens)
    exchange = world.route(body=b"1234567890")
    assert world.ledger.get(A.id).tokens == 30
    exchange.response_piece(1)
    assert world.ledger.get(A.id).tokens == 30
    exchange.end(Outcome.COMPLETED)
    assert world.ledger.get(A.id).tokens == 0


def test_no_expected_output_books_the_prompt_until_the_first_byte() -> None:
    world = World(A, output=lambda _: 0)
    exchange = world.route(body=b"1234567890")
    assert world.ledger.get(A.id).tokens == 10
    exchange.response_piece(1)
    assert world.ledger.get(A.id).tokens == 0
    exchange.end(Outcome.COMPLETED)


def test_what_a_client_says_of_a_caches_way_is_not_forwarded() -> None:
    world = World(build.endpoint())
    body = b'{"prompt":"a","kv_transfer_params":{"do_remote_prefill":true}}'
    exchange = asyncio.run(world.router.route(Arrival("r", {}, body)))
    assert exchange.request.prompt_tokens == len(b'{"prompt":"a"}')  # as the parser saw it


def test_headers_that_plugins_add_to_a_pick_go_beside_its_own() -> None:
    class Adds:
        def request_headers(self, request: InferenceRequest, pick: Pick) -> dict[str, str]:
            return {"x-one": pick.endpoints[0].address}

    class AddsNothing:
        def request_headers(self, request: InferenceRequest, pick: Pick) -> dict[str, str]:
            return {}

    world = World(A)
    line = structs.replace(world.router.pipeline, request_headers=(Adds(), AddsNothing()))
    world.router.reload(line)
    assert world.route().pick.headers == {"x-one": "10.0.0.1:8000"}
