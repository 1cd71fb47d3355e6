"""The scheduler alone: the whole line of the router over a large pool, without any network."""

from __future__ import annotations

import asyncio
import random
import time

import msgspec

from epp.build import Parts, configure
from epp.clock import Clock, SystemClock
from epp.ledger import Ledger
from epp.model import Arrival, CacheInfo, Endpoint, EndpointId, Load, Outcome
from epp.pool import Pool
from epp.router import Router
from epp.traffic.figures import percentile
from epp.traffic.workload import text

DECISIONS = 1500
WARM = 300
TENANTS = 8


def schedule(*, endpoints: int, prompt_tokens: int) -> tuple[float, float, float, float, int]:
    """Time decisions: CPU ms, decisions/s, p50 ms, p99 ms, count. Parsing and booking included."""
    draw = random.Random(3)
    clock = SystemClock()
    router = router_of(pool_of(endpoints, draw, clock.now()), draw, clock)
    arrivals = arrivals_of(draw, prompt_tokens)
    return asyncio.run(_time(router, arrivals))


async def _time(router: Router, arrivals: list[Arrival]) -> tuple[float, float, float, float, int]:
    took: list[float] = []
    open_exchanges = []
    cpu = time.process_time()
    began = time.perf_counter()
    for i in range(WARM + DECISIONS):
        if i == WARM:
            took.clear()
            cpu, began = time.process_time(), time.perf_counter()
        start = time.perf_counter()
        open_exchanges.append(await router.route(arrivals[i % len(arrivals)]))
        took.append((time.perf_counter() - start) * 1000)
        if len(open_exchanges) > 500:
            open_exchanges.pop(0).end(Outcome.COMPLETED)
    whole = time.perf_counter() - began
    cpu_ms = (time.process_time() - cpu) / DECISIONS * 1000
    return (
        cpu_ms,
        DECISIONS / whole,
        percentile(took, 50) or 0.0,
        percentile(took, 99) or 0.0,
        DECISIONS,
    )


def router_of(
    pool: Pool, draw: random.Random, clock: Clock, *, config: str | None = None
) -> Router:
    """Return a router over a pool; what an observer raises ends the measurement."""
    ledger = Ledger()
    parts = Parts(clock=clock, random=draw, ledger=ledger, pool=pool)
    return Router(
        pool, configure(config, parts)[1], ledger, clock=clock,
        on_observer_error=lambda _observer, error: (_ for _ in ()).throw(error),
    )  # fmt: skip


def pool_of(endpoints: int, draw: random.Random, now: float) -> Pool:
    """Return a pool of endpoints with loads as of ``now``."""
    pool = Pool("bench")
    for i in range(endpoints):
        pool.put(_endpoint(i, draw, now))
    return pool


def _endpoint(i: int, draw: random.Random, now: float) -> Endpoint:
    load = Load(
        at=now,
        queued=draw.randrange(4),
        running=draw.randrange(64),
        kv_usage=draw.random(),
        cache=CacheInfo(block_tokens=16, tokens=500_000),
    )
    host = f"10.0.{i // 250}.{i % 250 + 1}"
    return Endpoint(EndpointId(f"{host}:8000"), host, 8000, f"pod-{i}", load=load)


def arrivals_of(draw: random.Random, prompt_tokens: int) -> list[Arrival]:
    """Return 400 requests, each of which shares half of its prompt with others."""
    shared = [text(draw, prompt_tokens // 2) for _ in range(TENANTS)]
    made = []
    for i in range(400):
        body = msgspec.json.encode(
            {
                "model": "bench",
                "messages": [
                    {"role": "system", "content": draw.choice(shared)},
                    {"role": "user", "content": text(draw, prompt_tokens // 2)},
                ],
            }
        )
        headers = {
            ":method": "POST",
            ":path": "/v1/chat/completions",
            "content-type": "application/json",
        }
        made.append(Arrival(f"r-{i}", headers, body))
    return made
