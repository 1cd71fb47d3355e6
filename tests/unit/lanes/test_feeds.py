"""What plugins need beside requests follows the configuration in use."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import zmq

from epp.clock import SystemClock
from epp.collect.kv.sockets import context, opened
from epp.lanes.feeds import follow
from epp.pool import Pool
from tests.support.engine import served
from tests.support.kv_feeds import PUBLISHING, endpoint, producer, until


@contextlib.asynccontextmanager
async def followed(plugins: dict[str, Any], pool: Pool) -> AsyncIterator[None]:
    task = asyncio.create_task(follow(lambda: plugins, pool, SystemClock()))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_a_producer_that_is_configured_no_more_hears_nothing_more() -> None:
    async def run() -> None:
        async with served(PUBLISHING) as [(_, port)]:
            pool, first, second = Pool(), producer(), producer()
            pool.put(endpoint(port))
            plugins: dict[str, Any] = {"a": first}
            async with followed(plugins, pool):
                await until(lambda: list(first.engines), "a feed")
                plugins["a"] = second
                await until(lambda: list(second.engines) and not list(first.engines), "the other")
            assert not list(second.engines)

    asyncio.run(run())


def test_an_address_that_is_taken_is_tried_again() -> None:
    async def run() -> None:
        where = context()
        other = opened(zmq.SUB, where)  # a sender met by one that sends, too, never tries again
        port = other.bind_to_random_port("tcp://127.0.0.1")
        pool = Pool()
        pool.put(endpoint(1))
        made = producer({"kvEventsConfig": {"zmqEndpoint": f"tcp://127.0.0.1:{port}"}})
        async with followed({"a": made}, pool):
            await asyncio.sleep(0.05)  # it has tried by then, and whether it has changes nothing
            other.close(0)
            engine = opened(zmq.PUB, where)
            engine.connect(f"tcp://127.0.0.1:{port}")

            def told() -> bool:
                engine.send_multipart(
                    [b"kv@127.0.0.1:1@m", bytes(8), b"\x92\xcb" + bytes(8) + b"\x90"]
                )
                return bool(list(made.engines))

            await until(told, "a message")
            engine.close(0)
        where.term()

    asyncio.run(run())
