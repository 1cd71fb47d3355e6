"""Subscriptions: simulated engines publish over real sockets, and their blocks are known here."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from msgspec import structs

from epp.collect.kv import listings, subscriptions, turns
from epp.local.fleet import free_port
from epp.model import CacheCounts, Load
from epp.prefix.exact.keys import Keys
from epp.prefix.feed.audit import Claim
from epp.prefix.feed.trust import Level
from epp.sim.options import EngineOptions
from epp.sim.tokenizer import text
from tests.support.engine import served
from tests.support.kv_feeds import (
    PUBLISHING,
    asked,
    endpoint,
    exact,
    held,
    is_connected,
    level,
    posted,
    producer,
    subscribed,
    until,
)  # fmt: skip

A_TEXT, B_TEXT = text(100, seed=1), text(200, seed=2)


@pytest.mark.parametrize("layout", ["map", "array"])
def test_what_an_engine_computes_is_known_with_its_own_count_of_cached_tokens(layout: str) -> None:
    async def run() -> None:
        options = structs.replace(PUBLISHING, kv_events_layout=layout)
        async with served(options, options) as [(_, a), (_, b)]:
            made = producer()
            async with subscribed(made, endpoint(a), endpoint(b)):
                await exact(made, a)
                await exact(made, b)
                await asked(a, A_TEXT)
                await until(lambda: held(made, a, A_TEXT), "the blocks")
                assert held(made, a, A_TEXT) == 6  # of 16 tokens, in 100
                assert held(made, b, A_TEXT) == 0
                assert await asked(a, A_TEXT) == 96
                assert level(made, a) is Level.EXACT

    asyncio.run(run())


def test_what_is_known_is_held_against_the_counters_that_an_engine_is_scraped_for() -> None:
    async def run() -> None:
        async with served(PUBLISHING) as [(_, port)]:
            made = producer()
            async with subscribed(made, endpoint(port)) as pool:
                await exact(made, port)
                audit = made.engines.of(endpoint(port).id)[0].audit
                for number in range(4):
                    counts = CacheCounts(8000.0 * number, 0.0)
                    pool.set_load(endpoint(port).id, Load(at=float(number), counts=counts))
                    read = audit.answers + (number > 0)
                    await until(lambda read=read: audit.answers == read, "a comparison")
                    await asyncio.sleep(0.15)  # two looks at each reading change nothing
                    audit.picked(claim := Claim(8000, 4000))
                    audit.ended(claim, computed=True)
                assert (audit.answers, audit.over) == (3, 3)
                await until(lambda: level(made, port) is Level.EXACT, "what it told, read again")

    asyncio.run(run())


def test_an_engine_that_begins_again_at_another_port_is_followed_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(subscriptions, "SURE_SECONDS", 0.1)
    monkeypatch.setattr(turns, "RETRY_SECONDS", 0.1)

    async def run() -> None:
        made = producer()
        async with contextlib.AsyncExitStack() as stack:
            first = contextlib.AsyncExitStack()
            [(_, port)] = await first.enter_async_context(served(PUBLISHING))
            await stack.enter_async_context(subscribed(made, endpoint(port)))
            await exact(made, port)
            await asked(port, A_TEXT)
            await until(lambda: held(made, port, A_TEXT) == 6, "the blocks")
            await first.aclose()
            again = structs.replace(PUBLISHING, port=port)  # its events' port is a free one again
            await stack.enter_async_context(served(again))
            await until(lambda: held(made, port, A_TEXT) == 0, "a cache that is empty")
            await exact(made, port)
            await asked(port, B_TEXT)
            await until(lambda: held(made, port, B_TEXT) == 12, "the blocks")
            engine = made.engines.get(endpoint(port).id)
            assert (engine.messages, engine.sequence.restarts) == (2, 1)

    asyncio.run(run())


def test_an_engine_that_told_where_it_is_and_does_not_answer_is_left_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(subscriptions, "SURE_SECONDS", 0.05)
    monkeypatch.setattr(turns, "RETRY_SECONDS", 0.05)

    async def run() -> None:
        made = producer()
        async with contextlib.AsyncExitStack() as stack:
            [(_, port)] = await stack.enter_async_context(served(PUBLISHING))
            async with subscribed(made, endpoint(port)):
                await exact(made, port)
                await asked(port, A_TEXT)
                await until(lambda: held(made, port, A_TEXT) == 6, "the blocks")
                engine = made.engines.get(endpoint(port).id)
                await stack.aclose()
                await until(lambda: not is_connected(made, endpoint(port)), "its end")
                await asyncio.sleep(0.5)  # it is asked meanwhile, more than once
                assert made.engines.get(endpoint(port).id) is engine
                assert held(made, port, A_TEXT) == 6

    asyncio.run(run())


def test_secrets_are_read_again_as_their_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(subscriptions, "ROTATE_SECONDS", 0.02)

    async def run() -> None:
        file = tmp_path / "secrets"
        file.write_text("first")
        made = producer({"tokenProcessorConfig": {"hashSeedFile": str(file)}})
        async with served(PUBLISHING) as [(_, port)], subscribed(made, endpoint(port)):
            await exact(made, port)
            await asked(port, A_TEXT)
            await until(lambda: held(made, port, A_TEXT) == 6, "the blocks")
            file.write_text("second\nfirst")
            await until(lambda: made.index.keys == Keys((b"second", b"first")), "the new secret")
            assert held(made, port, A_TEXT) == 6
            file.write_text("")
            await until(lambda: "the secrets stay as they were" in caplog.text, "a warning")
            await asyncio.sleep(0.3)
            assert caplog.text.count("the secrets stay") == 1
            assert held(made, port, A_TEXT) == 6

    asyncio.run(run())


def test_what_was_told_before_anybody_listened_is_asked_for() -> None:
    async def run() -> None:
        async with served(PUBLISHING) as [(_, port)]:
            for seed in range(20):
                await asked(port, text(64, seed=seed))
            made = producer()
            async with subscribed(made, endpoint(port)):
                await exact(made, port)
                assert [held(made, port, text(64, seed=seed)) for seed in range(20)] == [4] * 20

    asyncio.run(run())


def test_without_replay_a_late_listener_knows_less_and_says_so() -> None:
    async def run() -> None:
        options = structs.replace(PUBLISHING, kv_events_replay_port=None)
        async with served(options) as [(_, port)]:
            await asked(port, A_TEXT)
            made = producer()
            async with subscribed(made, endpoint(port)):
                await until(lambda: is_connected(made, endpoint(port)), "a connection")
                await asked(port, B_TEXT)
                await until(lambda: held(made, port, B_TEXT) == 12, "the blocks")
                assert held(made, port, A_TEXT) == 0
                assert made.trust(endpoint(port).id).reason == "not_replayed"

    asyncio.run(run())


def test_lost_messages_are_replayed() -> None:
    async def run() -> None:
        options = structs.replace(PUBLISHING, kv_events_drop=0.3, seed=5)
        async with served(options) as [(_, port)]:
            made = producer()
            async with subscribed(made, endpoint(port)):
                await exact(made, port)
                for seed in range(40):
                    await asked(port, text(64, seed=seed))
                await asked(port, A_TEXT)
                engine = made.engines.get(endpoint(port).id)
                known = lambda: [held(made, port, text(64, seed=n)) for n in range(30)]  # noqa: E731
                await until(lambda: known() == [4] * 30, "the lost blocks")
                assert engine.sequence.gaps > 3
                assert engine.sequence.lost == 0

    asyncio.run(run())


def test_evicted_blocks_are_known_to_be_gone() -> None:
    async def run() -> None:
        async with served(structs.replace(PUBLISHING, kv_blocks=17)) as [(_, port)]:
            made = producer()
            async with subscribed(made, endpoint(port)):
                await exact(made, port)
                await asked(port, A_TEXT)
                await until(lambda: held(made, port, A_TEXT) == 6, "the blocks")
                await asked(port, B_TEXT)
                await until(lambda: held(made, port, B_TEXT) == 12, "the other blocks")
                left = held(made, port, A_TEXT)
                assert left < 6
                assert await asked(port, A_TEXT) == left * 16

    asyncio.run(run())


def test_a_cache_that_was_reset_is_known_to_be_empty_with_the_next_step() -> None:
    async def run() -> None:
        async with served(PUBLISHING) as [(_, port)]:
            made = producer()
            async with subscribed(made, endpoint(port)):
                await exact(made, port)
                await asked(port, A_TEXT)
                await until(lambda: held(made, port, A_TEXT) == 6, "the blocks")
                await posted(port, "/reset_prefix_cache")
                await asked(port, B_TEXT)
                await until(lambda: held(made, port, B_TEXT) == 12, "the other blocks")
                assert held(made, port, A_TEXT) == 0

    asyncio.run(run())


def test_an_engine_that_restarts_in_place_is_known_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "SURE_SECONDS", 0.1)
    monkeypatch.setattr(turns, "RETRY_SECONDS", 0.1)

    async def run() -> None:
        options = structs.replace(
            PUBLISHING, port=free_port(), kv_events_port=free_port(),
            kv_events_replay_port=free_port(),
        )  # fmt: skip
        made = producer()
        async with subscribed(made, endpoint(options.port)):
            async with served(options):
                await exact(made, options.port)
                for seed in range(4):
                    await asked(options.port, text(64, seed=seed))
                await until(lambda: held(made, options.port, text(64, seed=3)), "the blocks")
            async with served(options):
                await asked(options.port, A_TEXT)
                await until(lambda: held(made, options.port, A_TEXT) == 6, "the new blocks")
                assert held(made, options.port, text(64, seed=3)) == 0
                await exact(made, options.port)
                assert made.engines.get(endpoint(options.port).id).sequence.restarts == 1

    asyncio.run(run())


def test_engines_connect_to_a_listening_picker_and_are_told_apart_by_topic() -> None:
    async def run() -> None:
        where = f"tcp://127.0.0.1:{free_port()}"
        ports = free_port(), free_port()
        options = [
            structs.replace(
                PUBLISHING, port=port, kv_events_port=None, kv_events_connect=where,
                kv_events_replay_port=None, kv_events_topic=f"kv@127.0.0.1:{port}@a@b",
            )
            for port in ports
        ]  # fmt: skip
        made = producer({"kvEventsConfig": {"zmqEndpoint": where}})
        async with subscribed(made, *map(endpoint, ports)), served(*options):

            async def told() -> int:
                await asked(ports[0], A_TEXT)
                await posted(ports[0], "/reset_prefix_cache")
                return held(made, ports[0], A_TEXT)

            await eventually(told)
            assert held(made, ports[1], A_TEXT) == 0

    asyncio.run(run())


def test_b056_an_engine_of_a_later_pod_is_heard_at_its_own_count_of_ranks() -> None:
    """Field problem B056 (llm-d/llm-d-router#2227): ports by the pod's own count of ranks."""

    async def run() -> None:
        events = free_port()
        options = structs.replace(PUBLISHING, kv_events_port=events, kv_events_replay_port=None)
        ports = {"askSources": False, "socketPort": events - 8}
        made = producer({"kvEventsConfig": {"podDiscoveryConfig": ports}})
        async with served(options) as [(_, port)]:
            worker = structs.replace(endpoint(port), labels={"epp/first-rank": "8"})
            async with subscribed(made, worker):
                await until(lambda: is_connected(made, worker), "a connection")
                await asked(port, A_TEXT)
                await until(lambda: held(made, port, A_TEXT) == 6, "the blocks")

    asyncio.run(run())


def test_an_endpoint_that_is_gone_leaves_nothing_behind() -> None:
    async def run() -> None:
        async with served(PUBLISHING) as [(_, port)]:
            made = producer()
            async with subscribed(made, endpoint(port)) as pool:
                await exact(made, port)
                await asked(port, A_TEXT)
                await until(lambda: held(made, port, A_TEXT) == 6, "the blocks")
                pool.remove(endpoint(port).id)
                assert held(made, port, A_TEXT) == 0
                assert list(made.engines) == []
                await until(lambda: made.index.figures()["blocks"] == 0, "memory")
                pool.put(endpoint(port))
                await until(lambda: held(made, port, A_TEXT) == 6, "the blocks again")

    asyncio.run(run())


def test_the_salt_and_the_adapter_of_a_request_tell_blocks_apart() -> None:
    async def run() -> None:
        options = structs.replace(PUBLISHING, adapters=("lora",))
        async with served(options) as [(_, port)]:
            made = producer()
            async with subscribed(made, endpoint(port)):
                await exact(made, port)
                await asked(port, A_TEXT, model="lora", cache_salt="s")
                await until(lambda: held(made, port, A_TEXT, model="lora", salt="s"), "the blocks")
                assert held(made, port, A_TEXT) == 0
                assert held(made, port, A_TEXT, model="lora") == 0
                assert made.engines.adapters == {"lora"}

    asyncio.run(run())


async def eventually(told: Callable[[], Awaitable[object]]) -> None:
    async with asyncio.timeout(10):
        while not await told():
            await asyncio.sleep(0.01)


def test_which_names_are_adapters_is_asked_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listings, "AGAIN_SECONDS", 0.05)
    monkeypatch.setattr(turns, "RETRY_SECONDS", 0.05)

    async def run() -> None:
        made, port = producer(), free_port()
        async with subscribed(made, endpoint(port)) as pool:
            await until(lambda: made.names.root_of("lora") == "", "an answer in vain")
            for adapters in (("lora",), ("lora", "later")):
                options = EngineOptions(port=port, adapters=adapters)
                async with served(options):
                    await until(lambda told=adapters: made.names.adapters == {*told}, "its list")
                    assert made.names.models == {"sim"}
            pool.remove(endpoint(port).id)
            assert made.names.adapters == set()

    asyncio.run(run())
