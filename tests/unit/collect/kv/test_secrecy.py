"""Token ids go nowhere: not into the log, whatever fails, nor into what is shown."""

from __future__ import annotations

import asyncio
import logging
import re

import msgspec
import pytest
import zmq

from epp.collect.kv.sockets import opened
from epp.model import Endpoint, EndpointId
from epp.prefix.exact.keys import Prompt
from tests.support.kv import packed
from tests.support.kv_feeds import producer, subscribed, until

POD = Endpoint(EndpointId("pod"), "127.0.0.1", 8000)
IDS = [7_654_300 + number for number in range(32)]
TELLING = re.compile(r"76543\d\d|" + re.escape(str(IDS)) + "|" + packed(IDS[:1]).hex())


def events() -> list[list[object]]:
    """What can be used, and what cannot, each in a way of its own."""
    fine = ["BlockStored", [1, 2], None, IDS, 16]
    return [
        fine, ["BlockStored", [3], 2, IDS[:5], 16], ["BlockStored", [4], 77, IDS, 32],
        ["BlockStored", [5], None, IDS, "16"], ["BlockStored", [6], None, [*IDS, -1], 11],
        ["BlockStored", ["x"], None, IDS, 16], ["Else", IDS], ["BlockStored", [8], None, [IDS], 1],
    ]  # fmt: skip


def test_no_token_id_is_logged_or_shown_whatever_engines_send(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)

    async def run() -> str:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        publisher = opened(zmq.PUB, context)
        port = publisher.bind_to_random_port("tcp://127.0.0.1")
        ports = {"socketPort": port, "askSources": False}
        made = producer({"kvEventsConfig": {"podDiscoveryConfig": ports}})
        whole = msgspec.msgpack.encode([1.0, events(), 0])
        payloads = [whole, whole[:-9], b"\xc1" + whole, msgspec.msgpack.encode(IDS)]
        number = 0

        def tell() -> int:
            nonlocal number
            for payload in payloads:
                publisher.send_multipart([b"kv@pod@m", number.to_bytes(8, "big"), payload])
                number += 1
            return sum(each.unread for each in made.engines)

        async with subscribed(made, POD):
            await until(lambda: tell() > 20, "what cannot be used")
            await until(lambda: made.index.look_up(Prompt(packed(IDS), "")).blocks, "blocks")
            monkeypatch.delattr(type(made.index), "apply")
            await until(lambda: tell() and "a feed of KV events failed" in caplog.text, "a failure")
            shown = str(made.dump_state()) + repr(list(made.engines))
        context.destroy(0)
        return shown

    shown = asyncio.run(run())
    assert caplog.records
    assert not TELLING.search(caplog.text)
    assert not TELLING.search(shown)
