"""Feeds that are encrypted: who has the right keys is heard, and nobody else."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
import zmq

from epp.collect.kv.sockets import context, opened
from epp.model import Endpoint, EndpointId
from epp.prefix.exact.keys import Prompt
from epp.prefix.precise import PrecisePrefixCacheProducer
from tests.support.kv import packed
from tests.support.kv_feeds import producer, subscribed, until

POD = Endpoint(EndpointId("pod"), "127.0.0.1", 8000)
IDS = list(range(16))


def told(made: PrecisePrefixCacheProducer) -> bool:
    return bool(made.index.look_up(Prompt(packed(IDS), "")).blocks)


def message(number: int) -> list[bytes]:
    event = ["BlockStored", [1], None, IDS, 16]
    return [b"kv@pod@m", number.to_bytes(8, "big"), msgspec.msgpack.encode([1.0, [event], 0])]


async def tell(publisher: zmq.Socket[bytes]) -> None:
    """Publish until cancelled: nobody may listen yet."""
    for number in range(10_000):
        publisher.send_multipart(message(number))
        await asyncio.sleep(0.02)


def test_an_encrypted_feed_is_read_by_who_knows_the_engines_key(tmp_path: Path) -> None:
    async def run() -> None:
        engine_public, engine_secret = zmq.curve_keypair()
        stranger, _ = zmq.curve_keypair()
        ours = dict(zip(("public", "secret"), zmq.curve_keypair(), strict=True))
        for name, key in {**ours, "engine": engine_public, "stranger": stranger}.items():
            (tmp_path / name).write_bytes(key + b"\n")
        where = context()
        secret = {"curve_server": 1, "curve_secretkey": engine_secret}
        publisher = opened(zmq.PUB, where, **secret)
        port = publisher.bind_to_random_port("tcp://127.0.0.1")

        def listener(server: str | None) -> PrecisePrefixCacheProducer:
            keys = None
            if server is not None:
                keys = {"serverKeyFile": str(tmp_path / server)}
                keys |= {f"{each}KeyFile": str(tmp_path / each) for each in ("public", "secret")}
            ports = {"socketPort": port, "askSources": False}
            return producer({"kvEventsConfig": {"podDiscoveryConfig": ports, "curve": keys}})

        right, wrong, plain = listener("engine"), listener("stranger"), listener(None)
        async with subscribed(right, POD), subscribed(wrong, POD), subscribed(plain, POD):
            telling = asyncio.create_task(tell(publisher))
            await until(lambda: told(right), "the block")
            await asyncio.sleep(0.3)
            telling.cancel()
            assert [each.confidence.connected for each in right.engines] == [True]
            for other in (wrong, plain):
                assert not told(other)
                assert [each.confidence.connected for each in other.engines] == [False]
        publisher.close(0)
        where.term()

    asyncio.run(run())


def test_keys_are_refused_where_engines_connect_to_us(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"k")
    keys = dict.fromkeys(("serverKeyFile", "publicKeyFile", "secretKeyFile"), f"{tmp_path}/key")
    with pytest.raises(ValueError, match="would not be encrypted"):
        producer({"kvEventsConfig": {"zmqEndpoint": "tcp://*:5557", "curve": keys}})
