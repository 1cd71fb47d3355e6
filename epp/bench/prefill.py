"""From the choice of a prefill endpoint to the decode: what the picker adds to a prefill's answer.

The prefill engine keeps a cache for seconds only, so what the picker spends between the two is time
that the engine that decodes lacks. The engine here answers at once and shares the picker's thread,
so all that is measured is ours, and the engine's own share of it makes it worse than it is.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import aiohttp.web
import msgspec

from epp.build import Parts, configure
from epp.clock import SystemClock
from epp.ledger import Ledger
from epp.model import ROLE, Arrival, Endpoint, EndpointId, Outcome
from epp.pipeline import retire
from epp.plugin import Observer
from epp.pool import Pool
from epp.router import Router
from epp.sim.split.client import ANSWER
from epp.traffic.figures import percentile

PATH = "/v1/completions"
PROMPT_BYTES = 32_768
CONFIG = """\
plugins:
- type: always-disagg-pd-decider
- type: disagg-profile-handler
  parameters: {deciders: {prefill: always-disagg-pd-decider}}
- type: approx-prefix-cache-producer
- type: prefix-cache-scorer
- type: in-flight-load-scorer
- type: prefill-filter
- type: decode-filter
- type: max-score-picker
- type: prefill-client
schedulingProfiles:
- name: prefill
  plugins: [{pluginRef: prefill-filter}, {pluginRef: in-flight-load-scorer}]
- name: decode
  plugins: [{pluginRef: decode-filter}, {pluginRef: prefix-cache-scorer}]
"""


class Dispatch(msgspec.Struct, frozen=True):
    """What was measured."""

    rate: float  #: requests a second
    p50_ms: float
    p99_ms: float
    requests: int
    alone: int  #: requests whose prompt was not computed elsewhere


async def dispatch(rate: float, seconds: float) -> Dispatch:
    """Time what lies between the choice and the decode of ``rate`` requests a second."""
    app = aiohttp.web.Application(client_max_size=1 << 22)
    app.router.add_post(PATH, _answer)
    runner = aiohttp.web.AppRunner(app)
    await runner.setup()
    site = aiohttp.web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        return await _asked(runner.addresses[0][1], rate, seconds)
    finally:
        await runner.cleanup()


async def _answer(request: aiohttp.web.Request) -> aiohttp.web.Response:
    await request.read()
    return aiohttp.web.Response(body=ANSWER, content_type="application/json")


async def _asked(port: int, rate: float, seconds: float) -> Dispatch:
    router, close = _router(port)
    took: list[float | None] = []

    async def one(number: int) -> None:
        prompt = f"{number} " + "word " * (PROMPT_BYTES // 5)
        body = msgspec.json.encode({"model": "m", "prompt": prompt, "max_tokens": 64})
        head = {":path": PATH, "content-type": "application/json"}
        exchange = await router.route(Arrival(str(number), head, body))
        leg = exchange.leg
        done = leg is not None and leg.endpoint is not None
        took.append((SystemClock().now() - exchange.picked_at) * 1e3 if done else None)
        exchange.end(Outcome.COMPLETED)

    count, loop = int(rate * seconds), asyncio.get_running_loop()
    began = loop.time()
    async with asyncio.TaskGroup() as group:
        for number in range(count):
            await asyncio.sleep(began + number / rate - loop.time())
            group.create_task(one(number))
    spent = loop.time() - began
    await close()
    known = [each for each in took if each is not None]
    p50, p99 = (percentile(known, each) or 0.0 for each in (50, 99))
    return Dispatch(count / spent, p50, p99, count, count - len(known))


def _router(port: int) -> tuple[Router, Callable[[], Awaitable[None]]]:
    pool, ledger, clock = Pool("bench"), Ledger(), SystemClock()
    for name, role in (("p", "prefill"), ("d", "decode")):
        pool.put(Endpoint(EndpointId(name), "127.0.0.1", port, name, labels={ROLE: role}))
    parts = Parts(clock=clock, random=random.Random(1), ledger=ledger, pool=pool)
    _, pipeline = configure(CONFIG, parts, source="bench")
    retire(None, pipeline, pool)
    router = Router(pool, pipeline, ledger, clock=clock, on_observer_error=_raise)
    return router, pipeline.plugins["prefill-client"].close


def _raise(observer: Observer, error: Exception) -> None:
    raise error
