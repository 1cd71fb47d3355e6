"""Feeds of KV events for tests: simulated engines that publish, and a producer that listens."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import aiohttp
import msgspec

from epp.clock import SystemClock
from epp.collect.kv.subscriptions import Subscriptions
from epp.ledger import Ledger
from epp.model import Endpoint, EndpointId
from epp.plugin import Tools
from epp.pool import Pool
from epp.prefix.exact.keys import Prompt
from epp.prefix.feed.trust import Level
from epp.prefix.precise import PrecisePrefixCacheProducer
from epp.sim import tokenizer
from epp.sim.options import EngineOptions

SECONDS = 10.0
PUBLISHING = EngineOptions(
    speed=1000.0, kv_blocks=1024, kv_events_port=0, kv_events_replay_port=0, name="a"
)


def producer(parameters: Mapping[str, Any] | None = None) -> PrecisePrefixCacheProducer:
    params = msgspec.convert(parameters or {}, PrecisePrefixCacheProducer.Params, strict=True)
    return PrecisePrefixCacheProducer(params, Tools(SystemClock(), random.Random(1), Ledger()))


def endpoint(port: int, name: str = "") -> Endpoint:
    return Endpoint(EndpointId(f"127.0.0.1:{port}"), "127.0.0.1", port, name)


@contextlib.asynccontextmanager
async def subscribed(made: PrecisePrefixCacheProducer, *endpoints: Endpoint) -> AsyncIterator[Pool]:
    """Subscribe to the pool that is yielded."""
    pool = Pool()
    for each in endpoints:
        pool.put(each)
    task = asyncio.create_task(Subscriptions(made, pool, SystemClock()).run())
    try:
        yield pool
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def asked(port: int, text: str, **more: Any) -> int | None:
    """Send a completion; return how many tokens the engine found cached."""
    body = {"model": "sim", "prompt": text, "max_tokens": 1, **more}
    async with aiohttp.ClientSession() as session:
        url = f"http://127.0.0.1:{port}/v1/completions"
        async with session.post(url, json=body) as answer:
            usage = (await answer.json())["usage"]
    return usage["prompt_tokens_details"]["cached_tokens"]


async def posted(port: int, path: str) -> None:
    url = f"http://127.0.0.1:{port}{path}"
    async with aiohttp.ClientSession() as session, session.post(url) as answer:
        assert answer.status == 200


def held(made: PrecisePrefixCacheProducer, port: int, text: str, **more: Any) -> int:
    """Return how many blocks of a text's prompt the engine at a port holds, as it told."""
    ids = tokenizer.encode(text.encode()).astype("<u4").tobytes()
    known = made.index.look_up(Prompt(ids, more.get("model", ""), salt=more.get("salt", "")))
    return known.blocks.get(EndpointId(f"127.0.0.1:{port}"), 0)


def level(made: PrecisePrefixCacheProducer, port: int) -> Level:
    """Return how far what the engine at a port told is trusted."""
    return made.trust(endpoint(port).id).level


async def exact(made: PrecisePrefixCacheProducer, port: int) -> None:
    """Wait until the engine at a port is trusted."""
    await until(lambda: level(made, port) is Level.EXACT, f"trust in {port}")


def is_connected(made: PrecisePrefixCacheProducer, to: Endpoint) -> bool:
    """Whether an endpoint's events are listened to."""
    engine = made.engines.get(to.id)
    return engine is not None and engine.confidence.connected


async def until(true: Callable[[], object], what: str) -> None:
    """Wait until something is so, within a bound."""
    loop = asyncio.get_running_loop()
    end = loop.time() + SECONDS
    while not true():
        assert loop.time() < end, f"in vain for {what}"
        await asyncio.sleep(0.01)
