"""Where the gRPC server listens, and that floods of one client do not keep others waiting."""

from __future__ import annotations

import asyncio

import grpc

from epp.rpc import frames
from epp.rpc.call import Call
from epp.rpc.server import RpcServer
from tests.support.rpc import PLAIN_HEAD, message

PATH = "/a.B/Do"
FLOODS = {
    "pings": frames.frame(frames.PING, 0, 0, b"12345678"),
    "settings": frames.settings({frames.INITIAL_WINDOW_SIZE: 70_000}),
    "unknown": frames.frame(0x42, 0, 0, b"?"),
    "empty data": frames.frame(frames.DATA, 0, 1),
}


async def echo(call: Call) -> None:
    while isinstance(data := await call.read(), bytes):
        await call.write(data)


def test_a_name_with_addresses_of_both_families_means_ipv4() -> None:
    server = RpcServer({PATH: echo}, most_bytes=(100, 100))

    async def main() -> None:
        port = server.bind("localhost", 0)
        await server.start()
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()
        await server.stop(None)

    asyncio.run(main())


def test_others_are_served_while_clients_flood() -> None:
    async def main() -> None:
        server = RpcServer({PATH: echo}, most_bytes=(2**20, 2**20))
        port = server.bind("127.0.0.1", 0)
        await server.start()
        floods = [asyncio.create_task(_flood(port, each)) for each in FLOODS.values()]
        floods.append(asyncio.create_task(_resets(port)))
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            for _ in range(20):
                assert await channel.unary_unary(PATH)(b"abc", timeout=30) == b"abc"
        assert not any(flood.done() for flood in floods)
        for flood in floods:
            flood.cancel()
        await asyncio.wait(floods)
        await server.stop(None)

    asyncio.run(main())


async def _flood(port: int, data: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    opened = frames.frame(frames.HEADERS, frames.END_HEADERS, 1, PLAIN_HEAD)
    writer.write(frames.PREFACE + frames.settings({}) + opened)
    reads = asyncio.create_task(_drain(reader))
    try:
        while True:
            writer.write(data * 5_000)
            await writer.drain()
            await asyncio.sleep(0)
    finally:
        reads.cancel()
        writer.transport.abort()


async def _resets(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(frames.PREFACE + frames.settings({}))
    reads = asyncio.create_task(_drain(reader))
    try:
        for stream in range(1, 2**31, 2):
            writer.write(
                frames.frame(frames.HEADERS, frames.END_HEADERS, stream, PLAIN_HEAD)
                + frames.frame(frames.DATA, 0, stream, message(b"abc"))
                + frames.reset(stream, frames.Fault.CANCEL)
            )
            await writer.drain()
            if stream % 1_000 == 1:
                await asyncio.sleep(0)
    finally:
        reads.cancel()
        writer.transport.abort()


async def _drain(reader: asyncio.StreamReader) -> None:
    while await reader.read(2**16):
        pass
