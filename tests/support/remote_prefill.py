"""A picker's router that runs prefills itself, before simulated engines on real sockets."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import aiohttp

from epp.build import Parts, configure
from epp.clock import SystemClock
from epp.disagg.remote.client import PrefillClient
from epp.exchange import Exchange
from epp.ledger import Ledger
from epp.model import Arrival, Endpoint, EndpointId
from epp.pipeline import retire
from epp.pool import Pool
from epp.router import Router
from epp.sim import tokenizer
from epp.sim.options import EngineOptions
from tests.support import engine
from tests.support.build import Diary

PROMPT = tokenizer.text(150)
BODY = {"model": "sim", "prompt": PROMPT, "max_tokens": 8}
PREFILL = EngineOptions(name="p", role="prefill", speed=50.0, block_size=32)
DECODE = EngineOptions(
    name="d", role="decode", speed=50.0, block_size=32, kv_connect_timeout=250.0
)  #: the wait for an engine that has the cache is as long as in life, for slow machines
PATH = "/v1/completions"
JSON = {"content-type": "application/json"}
CONFIG = """
plugins:
- type: disagg-profile-handler
  parameters: {deciders: {prefill: always-disagg-pd-decider}}
- type: always-disagg-pd-decider
- type: prefill-filter
- type: decode-filter
- type: max-score-picker
- type: prefill-client
  parameters: %s
schedulingProfiles:
- name: prefill
  plugins: [{pluginRef: prefill-filter}, {pluginRef: max-score-picker}]
- name: decode
  plugins: [{pluginRef: decode-filter}, {pluginRef: max-score-picker}]
"""


def endpoint(name: str, port: int, role: str) -> Endpoint:
    labels = {"llm-d.ai/role": role}
    return Endpoint(EndpointId(name), "127.0.0.1", port, name, "default", labels=labels)


class Case:
    """One router and its pool; engines are the caller's."""

    def __init__(self, endpoints: Sequence[Endpoint], **params: Any) -> None:
        self.pool, self.ledger, self.diary = Pool(), Ledger(), Diary()
        self.endpoints = {each.name: each for each in endpoints}
        for each in endpoints:
            self.pool.put(each)
        parts = Parts(
            clock=SystemClock(), random=random.Random(1), ledger=self.ledger, pool=self.pool,
            extra_observers=(self.diary,),
        )  # fmt: skip
        self.pipeline = configure(CONFIG % json.dumps(params), parts)[1]
        retire(None, self.pipeline, self.pool)
        client = self.pipeline.prefiller
        assert isinstance(client, PrefillClient)
        self.client = client
        self.router = Router(
            self.pool, self.pipeline, self.ledger, clock=parts.clock, on_observer_error=_fail
        )

    async def route(
        self, body: Mapping[str, Any] = BODY, *, patient: bool = True, **headers: str
    ) -> Exchange:
        told = {":path": PATH, **JSON}
        told |= {name.replace("_", "-"): value for name, value in headers.items()}
        sent = json.dumps(body).encode()
        return await self.router.route(Arrival("r-1", told, sent, patient=patient))

    def booked(self, name: str) -> tuple[int, int]:
        """Requests and tokens in flight at an endpoint."""
        counts = self.ledger.get(self.endpoints[name].id)
        return counts.requests, counts.tokens

    @property
    def idle(self) -> bool:
        """Nothing is booked or under way."""
        return not self.client.in_flight and not any(
            self.booked(name) != (0, 0) for name in self.endpoints
        )


async def until(condition: Callable[[], bool]) -> None:
    """Wait until it is true, at most ten seconds."""
    async with asyncio.timeout(10.0):
        while not condition():
            await asyncio.sleep(0.001)


async def decoded(exchange: Exchange) -> tuple[int, Any]:
    """Send what is forwarded to where it goes, as the gateway does."""
    url = f"http://{exchange.sent.destination}{PATH}"
    async with (
        aiohttp.ClientSession() as http,
        http.post(url, data=exchange.request.body, headers=JSON) as answer,
    ):
        return answer.status, json.loads(await answer.read())


def with_case(
    use: Callable[[Case, list[engine.EngineServer]], Awaitable[None]],
    *prefills: EngineOptions,
    **params: Any,
) -> None:
    """Run a test with one decode engine and prefill engines, whose names begin with p."""

    async def main() -> None:
        async with engine.served(DECODE, *(prefills or (PREFILL,))) as engines:
            ports = [port for _, port in engines]
            known = [endpoint("d", ports[0], "decode")]
            known += [endpoint(f"p{i}", port, "prefill") for i, port in enumerate(ports[1:])]
            case = Case(known, **params)
            try:
                await use(case, [server for server, _ in engines])
            finally:
                await case.client.close()

    asyncio.run(main())


def _fail(observer: object, error: Exception) -> None:
    raise error
