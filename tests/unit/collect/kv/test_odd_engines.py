"""Subscriptions to engines that publish nothing, or oddly: they cost the others nothing."""

from __future__ import annotations

import asyncio
import functools

import msgspec
import pytest
import zmq
from msgspec import structs

from epp.clock import SystemClock
from epp.collect.kv import central, link, subscriptions
from epp.collect.kv.feed import Feed
from epp.collect.kv.pump import Pump
from epp.collect.kv.sockets import opened
from epp.collect.kv.subscriptions import Subscriptions
from epp.collect.parse.kv_messages import Message
from epp.local.fleet import free_port
from epp.pool import Pool
from epp.prefix.exact.keys import Prompt
from epp.prefix.feed.trust import Level, Trust
from epp.sim.tokenizer import text
from tests.support.engine import served
from tests.support.kv import A, packed
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
UNASKED = {"kvEventsConfig": {"podDiscoveryConfig": {"askSources": False}}}


def test_b101_pods_without_events_are_tried_ever_less_often_and_fill_no_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Field problem B101 (llm-d/llm-d-router PR 2445): 48k lines of refused connections."""

    async def run() -> None:
        tries = 0

        async def close(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal tries
            tries += 1
            writer.close()

        server = await asyncio.start_server(close, "127.0.0.1", 0)  # as a mesh's sidecar does
        mute = server.sockets[0].getsockname()[1]
        ports = {"socketPort": free_port(), "replaySocketPort": free_port(), "askSources": False}
        refused = producer({"kvEventsConfig": {"podDiscoveryConfig": ports}})
        closed = producer({"kvEventsConfig": {"podDiscoveryConfig": {**ports, "socketPort": mute}}})
        pods = [endpoint(port, f"pod-{port}") for port in range(8001, 8005)]
        async with server, subscribed(refused, *pods), subscribed(closed, endpoint(8001)):
            await until(lambda: tries, "a try")
            await asyncio.sleep(1.5)
            assert tries <= 6  # where something listens that is no engine: 0.3 s and more apart
            for each in pods:
                assert refused.trust(each.id) == Trust(Level.PRIOR, "not_connected")

    asyncio.run(run())
    assert link._OPTIONS["reconnect_ivl_max"] >= 10 * link._OPTIONS["reconnect_ivl"]
    assert not caplog.records


def test_an_odd_engine_is_left_alone_and_the_others_are_followed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def run() -> None:
        made = producer()
        async with (
            served(PUBLISHING, PUBLISHING) as [(_, odd), (_, port)],
            subscribed(made, endpoint(odd), endpoint(port)),
        ):
            await exact(made, odd)
            await exact(made, port)
            made.engines.of(endpoint(odd).id)[0].sequence.tick = None  # type: ignore[method-assign,assignment]
            await until(lambda: "not read any more" in caplog.text, "an error")
            await asked(port, A_TEXT)
            await until(lambda: held(made, port, A_TEXT) == 6, "the blocks")
            assert made.trust(endpoint(odd).id) == Trust(Level.PRIOR, "not_connected")

    asyncio.run(run())
    assert len(caplog.records) == 1


def test_who_sends_more_than_any_engine_is_cut_off_and_the_others_are_followed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(central, "MOST_MESSAGE", 100_000)

    async def run() -> None:
        where = f"tcp://127.0.0.1:{free_port()}"
        made = producer({"kvEventsConfig": {"zmqEndpoint": where}})
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        pods = [endpoint(8001, "odd"), endpoint(8002, "fine")]
        publishers = [opened(zmq.PUB, context) for _ in pods]
        block = ["BlockStored", [1], None, [*range(16)], 16]
        small, large = (msgspec.msgpack.encode([1.0, [block, ["-" * size]]]) for size in (1, 10**5))
        async with subscribed(made, *pods):
            for each in publishers:
                each.connect(where)
            for number in range(1000):
                for pod, each in zip(pods, publishers, strict=True):
                    payload = large if pod.name == "odd" else small
                    topic = f"kv@{pod.name}@m".encode()
                    each.send_multipart([topic, number.to_bytes(8, "big"), payload])
                await asyncio.sleep(0.005)
                known = made.index.look_up(Prompt(packed(range(16)), "")).blocks
                if known:
                    break
            assert known == {pods[1].id: 1}
        context.destroy(0)

    asyncio.run(run())


def test_an_engine_that_connects_before_its_pod_is_known_is_heard_from_then_on() -> None:
    async def run() -> None:
        where = f"tcp://127.0.0.1:{free_port()}"
        made = producer({"kvEventsConfig": {"zmqEndpoint": where}})
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        publisher, pod = opened(zmq.PUB, context), endpoint(8001, "late")
        publisher.connect(where)
        block = msgspec.msgpack.encode([1.0, [["BlockStored", [1], None, [*range(16)], 16]]])
        number = 0

        def tell() -> bool:
            nonlocal number
            publisher.send_multipart([b"kv@late@m", number.to_bytes(8, "big"), block])
            number += 1
            return bool(made.index.look_up(Prompt(packed(range(16)), "")).blocks)

        async with subscribed(made, endpoint(8002, "other")) as pool:
            for _ in range(50):
                assert not tell()
                await asyncio.sleep(0.005)
            pool.put(pod)
            await until(tell, "its block")
        context.destroy(0)

    asyncio.run(run())


def test_engines_that_are_asked_for_old_messages_wait_for_their_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(link, "MOST_REPLAYS", 2)

    async def run() -> None:
        made, pool, most = producer(), Pool(), 0
        async with served(*[PUBLISHING] * 8) as engines:
            ports = [port for _, port in engines]
            for port in ports:
                await asked(port, A_TEXT)
                pool.put(endpoint(port))
            feeds = Subscriptions(made, pool, SystemClock())
            task = asyncio.create_task(feeds.run())
            async with asyncio.timeout(30):
                while sum(held(made, port, A_TEXT) == 6 for port in ports) < len(ports):
                    await asyncio.sleep(0)
                    most = max(most, len(feeds._line.replaying))
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert not feeds._line.replaying
        assert 1 <= most <= 2

    asyncio.run(run())


@pytest.mark.parametrize("layout", ["map", "array"])  # a replay of four frames, and of three
def test_an_engine_whose_buffer_is_wrapped_is_known_from_the_oldest_it_has(layout: str) -> None:
    async def run() -> None:
        options = structs.replace(PUBLISHING, kv_events_buffer=3, kv_events_layout=layout)
        async with served(options) as [(_, port)]:
            made, texts = producer(), [text(64, seed=number) for number in range(7)]
            for each in texts[:6]:
                await asked(port, each)
            async with subscribed(made, endpoint(port)):
                pod = endpoint(port).id
                wanted = Trust(Level.PREDICTED, "history_lost")
                await until(lambda: made.trust(pod) == wanted, "what it has")
                await until(lambda: held(made, port, texts[5]) == 4, "the newest")
                assert [held(made, port, each) for each in texts] == [0, 0, 0, 4, 4, 4, 0]
                await asked(port, texts[6])
                await until(lambda: held(made, port, texts[6]) == 4, "what came later")
                assert made.engines.get(pod).sequence.lost == 3

    asyncio.run(run())


def test_an_engine_that_cannot_be_asked_takes_no_turn_from_those_that_can(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def run() -> None:
        made, shared = producer(), zmq.Context[zmq.Socket[bytes]]()
        line = link.Line(shared, Pump(), SystemClock())
        engine = made.engines.add(A, 0, can_ask=True)
        odd = link.Link(Feed(engine, made.index), link.Where("", "tcp://127.0.0.1:none"), line)
        odd.hear(Message("kv@a@m", 5, b""))
        await until(lambda: caplog.records, "a failure")
        assert not line.replaying
        odd.close()
        shared.destroy(0)

    asyncio.run(run())


def test_a_whole_fleet_is_opened_and_looked_after_a_part_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(subscriptions, "OPENED", 2)
    monkeypatch.setattr(subscriptions, "LOOKED_AFTER", 2)

    async def run() -> None:
        made, pool, grown = producer(UNASKED), Pool(), 0
        for number in range(9):
            pool.put(endpoint(8001 + number))
        feeds = Subscriptions(made, pool, SystemClock())
        task = asyncio.create_task(feeds.run())
        async with asyncio.timeout(30):
            while grown < 9:
                await asyncio.sleep(0)
                assert len(feeds._links) - grown <= 2
                grown = len(feeds._links)
        ticked: set[str] = set()
        for pod, links in feeds._links.items():
            monkeypatch.setattr(links[0], "tick", functools.partial(ticked.add, pod))
        await until(lambda: len(ticked) == 9, "a look at each")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())
