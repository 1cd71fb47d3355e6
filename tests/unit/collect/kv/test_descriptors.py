"""Feeds that cannot be opened, as there are no more descriptors: they are once there are."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
import zmq

from epp.collect.kv import sockets, turns
from epp.collect.kv.sockets import context, opened
from epp.local.fleet import free_port
from epp.prefix.feed import sequence
from epp.sim.tokenizer import text
from tests.support.engine import served
from tests.support.kv_feeds import (
    PUBLISHING,
    asked,
    endpoint,
    exact,
    held,
    producer,
    subscribed,
    until,
)  # fmt: skip

A_TEXT = text(100, seed=1)
NO_ENGINES = ("pod-1", "pod-2")


def test_a_feed_without_a_descriptor_is_opened_once_there_is_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A feed takes a socket, and two to watch it; two engines that are none take them all."""
    monkeypatch.setattr(sockets, "MOST_SOCKETS", 8)
    monkeypatch.setattr(turns, "RETRY_SECONDS", 0.05)

    async def run() -> None:
        made = producer()
        others = [endpoint(free_port(), name) for name in NO_ENGINES]
        async with contextlib.AsyncExitStack() as stack:
            pool = await stack.enter_async_context(subscribed(made, *others))
            await until(lambda: all(made.engines.get(each.id) for each in others), "their feeds")
            [(_, port)] = await stack.enter_async_context(served(PUBLISHING))
            pool.put(endpoint(port))
            await until(lambda: made.engines.get(endpoint(port).id), "its feed")
            engine = made.engines.get(endpoint(port).id)
            await until(lambda: engine.unopened > 2, "more tries than one")
            assert made.trust(endpoint(port).id).reason == "not_connected"
            for each in others:
                pool.remove(each.id)
            await exact(made, port)
            await asked(port, A_TEXT)
            await until(lambda: held(made, port, A_TEXT) == 6, "the blocks")

    asyncio.run(run())
    (line,) = [record.getMessage() for record in caplog.records]
    assert "Too many open files" in line


def test_an_engine_that_cannot_be_asked_for_lack_of_descriptors_is_followed_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The sockets suffice to listen to an engine, but not to ask it for old messages."""
    monkeypatch.setattr(sockets, "MOST_SOCKETS", 3)
    monkeypatch.setattr(sequence, "QUIET_SECONDS", 0.1)

    async def run() -> None:
        made = producer()
        async with contextlib.AsyncExitStack() as stack:
            [(_, port)] = await stack.enter_async_context(served(PUBLISHING))
            await stack.enter_async_context(subscribed(made, endpoint(port)))
            await until(lambda: made.engines.get(endpoint(port).id), "its feed")
            engine = made.engines.get(endpoint(port).id)
            await until(lambda: engine.unopened, "a question that cannot be asked")
            await asked(port, A_TEXT)
            await until(lambda: held(made, port, A_TEXT) == 6, "the blocks")

    asyncio.run(run())


def test_a_socket_with_a_setting_that_is_none_is_not_left_open() -> None:
    where = context()
    with pytest.raises(zmq.ZMQError):
        opened(zmq.SUB, where, curve_serverkey=b"short")
    where.term()  # waits for every socket
