"""Compressed messages: read as gRPC's own clients send them, and bounded.

**Source:** gRPC, doc/compression.md.
"""

from __future__ import annotations

import asyncio
import gzip
import zlib

import grpc
import pytest

from epp.rpc.call import Call
from epp.rpc.server import RpcServer
from tests.support.rpc import Talk, message

PATH = "/a.B/Do"
MOST = 2**20
LONG = bytes(range(256)) * 2_000  #: several pieces once unpacked


async def echo(call: Call) -> None:
    while isinstance(data := await call.read(), bytes):
        await call.write(data)


def answered(encoding: str, sent: bytes, *, most: int = MOST) -> tuple[bytes, tuple[str, str]]:
    """Return what came back for ``sent``, and how the call ended."""

    async def main() -> tuple[bytes, tuple[str, str]]:
        talk = Talk({PATH: echo}, most=most)
        stream = talk.open(("grpc-encoding", encoding))
        talk.client.send_data(stream, sent, end_stream=True)
        talk.pump()
        for _ in range(10):
            talk.client.increment_flow_control_window(2**20)
            await talk.settle()
        status = talk.status(stream)
        assert status is not None
        return talk.messages(stream), status

    return asyncio.run(main())


@pytest.mark.parametrize("plain", [b"", b"abc", b"x" * 2**17, b"x" * 2**17 + b"y", b"z" * MOST])
@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_compressed_messages_are_read_and_plain_ones_beside_them(
    plain: bytes, encoding: str
) -> None:
    packed = (gzip.compress if encoding == "gzip" else zlib.compress)(plain)
    got: list[bytes] = []

    async def keep(call: Call) -> None:
        while isinstance(data := await call.read(), bytes):
            got.append(data)

    async def main() -> None:
        talk = Talk({PATH: keep}, most=MOST)
        stream = talk.open(("grpc-encoding", encoding))
        sent = message(packed, compressed=True) + message(b"plain") + message(b"")
        talk.client.send_data(stream, sent, end_stream=True)
        talk.pump()
        await talk.settle()
        assert talk.status(stream) == ("0", "")

    asyncio.run(main())
    assert got == [plain, b"plain", b""]


def test_a_bomb_ends_its_call_before_it_is_unpacked() -> None:
    bomb = gzip.compress(b"\0" * 2**23)
    assert answered("gzip", message(bomb, compressed=True), most=2**16)[1][0] == "8"
    assert answered("gzip", message(gzip.compress(b"x" * 101), compressed=True), most=100) == (
        b"",
        ("8", "a message is larger than the 100 bytes that are taken, once unpacked"),
    )


@pytest.mark.parametrize(
    ("encoding", "sent", "code"),
    [
        ("snappy", message(b"abc", compressed=True), "12"),
        ("identity", message(b"abc", compressed=True), "13"),
        ("gzip", b"\x02\0\0\0\0", "13"),
        ("gzip", message(b"abc", compressed=True), "13"),
        ("gzip", message(b"", compressed=True), "13"),
        ("gzip", message(gzip.compress(LONG)[:-1], compressed=True), "13"),
        ("gzip", message(gzip.compress(LONG) + b"more", compressed=True), "13"),
        ("snappy", message(b"abc"), "0"),
    ],
)
def test_what_is_not_compressed_as_said_is_told(encoding: str, sent: bytes, code: str) -> None:
    assert answered(encoding, sent)[1][0] == code


@pytest.mark.parametrize("how", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_grpcs_own_client_may_compress(how: grpc.Compression) -> None:
    async def main() -> bytes:
        server = RpcServer({PATH: echo}, most_bytes=(2**22, 2**22))
        port = server.bind("127.0.0.1", 0)
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", compression=how) as channel:
            try:
                answer: bytes = await channel.unary_unary(PATH)(LONG, timeout=20)
            finally:
                await server.stop(None)
        return answer

    assert asyncio.run(main()) == LONG
