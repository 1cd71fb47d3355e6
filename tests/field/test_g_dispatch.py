"""Field problems (g): what lies between the choice of a prefill endpoint and the decode."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Generator
from typing import Any, cast

from epp.bench.prefill import ANSWER, dispatch
from epp.clock import SystemClock
from epp.disagg.remote.leg import Answer, Http, Sent
from epp.exchange import Exchange
from epp.model import Endpoint, InferenceRequest, Outcome
from tests.support.remote_prefill import Case, endpoint

REQUESTS = 200


class Held(Http):
    """Prefills that are answered when the test says so."""

    def __init__(self) -> None:
        super().__init__("http", tls=True, most=1, clock=SystemClock())
        self.asked: list[asyncio.Future[Answer]] = []

    async def prefill(self, endpoint: Endpoint, request: InferenceRequest, sent: Sent) -> Answer:
        self.asked.append(asyncio.get_running_loop().create_future())
        return await self.asked[-1]


class Counted:
    """A coroutine, and what it waits for."""

    def __init__(self, work: Awaitable[Exchange]) -> None:
        self.work = work
        self.waited: list[object] = []

    def __await__(self) -> Generator[Any, Any, Exchange]:
        inner = self.work.__await__()
        try:
            while True:
                waits = next(inner)
                self.waited.append(waits)
                yield waits
        except StopIteration as done:
            return cast("Exchange", done.value)


def test_b140_between_a_prefills_choice_and_the_decode_only_its_answer_is_waited_for() -> None:
    """Field problem B140: blocks expired before decode came for them, vllm-project/aibrix#1772."""

    async def main() -> None:
        case = Case([endpoint("d", 1, "decode"), endpoint("p0", 2, "prefill")])
        held = case.client._http = Held()
        routes = [Counted(case.route()) for _ in range(REQUESTS)]

        async def one(route: Counted) -> Exchange:
            return await route

        tasks = [asyncio.create_task(one(route)) for route in routes]
        await asyncio.sleep(0)  # each runs as far as it can without waiting
        assert len(held.asked) == REQUESTS
        assert case.booked("p0")[0] == REQUESTS
        for answer in reversed(held.asked):  # nobody waits for another's
            answer.set_result(Answer(ANSWER, SystemClock().now()))
        await asyncio.sleep(0)
        assert all(task.done() for task in tasks)
        assert [route.waited for route in routes] == [[answer] for answer in held.asked]
        for task in tasks:
            exchange = task.result()
            assert exchange.leg is not None
            assert exchange.leg.endpoint == case.endpoints["p0"]
            exchange.end(Outcome.COMPLETED)
        assert case.idle

    asyncio.run(main())


def test_the_measurement_of_it_computes_every_prompt_elsewhere() -> None:
    seen = asyncio.run(dispatch(rate=50.0, seconds=0.4))
    assert (seen.requests, seen.alone) == (20, 0)
    assert 0.0 < seen.p50_ms <= seen.p99_ms
