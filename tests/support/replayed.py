"""A fixed day in a pool's life, to be replayed through any configuration: what was picked?

Thirty sessions of growing prompts over six endpoints whose queues and caches change as they go.
Nothing depends on time or chance, so equal configurations pick equally.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from pathlib import Path

import msgspec

from epp.build import Parts, configure
from epp.catalog import Catalog
from epp.clock import ManualClock
from epp.exchange import Exchange
from epp.ledger import Ledger
from epp.model import Arrival
from epp.plugin import Observer
from epp.pool import Pool
from epp.router import Router
from tests.support import build

REQUESTS = 240
IN_FLIGHT = 7
ROLES = {"d1": "decode", "d2": "decode", "x": "", "p1": "prefill", "p2": "prefill", "b": "both"}
ANY_PARTS = Parts(
    clock=ManualClock(),
    random=random.Random(),
    ledger=Ledger(),
    pool=Pool(),
    catalog=Catalog(),
    allow_experimental=True,
)
"""For configurations that are only to be built."""
CONFIGS = Path(__file__).parents[1] / "data" / "config"


class Replay(msgspec.Struct):
    """What came of a replay."""

    warnings: tuple[str, ...]
    picks: list[tuple[str, dict[str, str]]]  #: destination and extra headers of each request

    @property
    def destinations(self) -> set[str]:
        return {destination for destination, _ in self.picks}

    @property
    def disaggregated(self) -> int:
        return sum(1 for _, headers in self.picks if headers)


def replay(text: str | None) -> Replay:
    """Build the pipeline that ``text`` says and send the recorded requests through it."""
    return asyncio.run(_replay(text))


async def _replay(text: str | None) -> Replay:
    clock, pool, ledger = ManualClock(100.0), Pool(), Ledger()
    for number, (name, role) in enumerate(ROLES.items(), 1):
        labels = {"tier": "gold" if number % 2 else "silver"}
        labels |= {"llm-d.ai/role": role} if role else {}
        labels["llm-d.ai/context-length-range"] = "0-300" if number % 2 else "300-9000"
        pool.put(build.endpoint(name, host=f"10.0.0.{number}", labels=labels, at=100.0))
    parts = Parts(
        clock=clock, random=random.Random(7), ledger=ledger, pool=pool, allow_experimental=True
    )
    loaded, pipeline = configure(text, parts)
    router = Router(pool, pipeline, ledger, clock=clock, on_observer_error=_fail)
    open_: list[Exchange] = []
    picks = []
    for arrival in _arrivals():
        clock.advance(0.05)
        _change_load(pool, len(picks), clock.now())
        exchange = await router.route(arrival)
        picks.append((exchange.pick.destination, dict(exchange.pick.headers)))
        open_.append(exchange)
        if len(open_) > IN_FLIGHT:
            open_.pop(0).complete()
    return Replay((*loaded.warnings, *pipeline.warnings), picks)


def _arrivals() -> Iterator[Arrival]:
    """Prompts of 30 sessions: 40 to 700 tokens at first, up to 200 more each turn."""
    chance = random.Random(3)
    talk = [
        "".join(f"s{session}w{word} " for word in range(chance.randrange(20, 400)))
        for session in range(30)
    ]
    for number in range(REQUESTS):
        session = chance.randrange(len(talk))
        talk[session] += "".join(f"n{number}w{word} " for word in range(chance.randrange(5, 90)))
        body = json.dumps({"model": "llama", "prompt": talk[session]}).encode()
        yield Arrival(f"r-{number}", {":path": "/v1/completions"}, body)


def _change_load(pool: Pool, number: int, now: float) -> None:
    """One endpoint is scraped before each request."""
    chance = random.Random(number)
    endpoint = pool.snapshot()[number % len(ROLES)]
    load = build.load(
        at=now,
        queued=chance.choice([0, 0, 0, 1, 3, 8]),
        running=chance.randrange(0, 12),
        kv_usage=chance.choice([0.05, 0.3, 0.6, 0.95]),
    )
    pool.set_load(endpoint.id, load)


def _fail(observer: Observer, error: Exception) -> None:
    raise error
