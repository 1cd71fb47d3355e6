"""Clients that leave: at each phase of a request, in each way that a connection can end."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Literal

from tests.support import http1, http2
from tests.support.backend import wanted
from tests.support.process import eventually

CHAT = "/v1/chat/completions"
PROMPT = b'{"model":"m","prompt":"a"}'
UPGRADE = {"connection": "Upgrade", "upgrade": "websocket"}
LIMIT_SECONDS = 15.0

Phase = Literal["body", "head", "answer", "upgrade"]
"""body: half of it is sent. head: all is sent, no answer has begun. answer: it has begun."""
Way = Literal["http1-close", "http1-reset", "http2-close", "http2-reset", "http2-stream"]

PHASES: tuple[Phase, ...] = ("body", "head", "answer", "upgrade")
WAYS: tuple[Way, ...] = ("http1-close", "http1-reset", "http2-close", "http2-reset", "http2-stream")
CASES = [(p, w) for p in PHASES for w in WAYS if p != "upgrade" or w.startswith("http1")]

Reached = Callable[[], Awaitable[object]]  #: returns when the request is where it is to be left


def soon(read: Callable[[], object]) -> Reached:
    """Return when ``read`` says so."""
    return lambda: asyncio.to_thread(eventually, read)


def asked(phase: Phase) -> dict[str, str]:
    """What the model server is to do with a request that is left in ``phase``."""
    if phase == "answer":
        return wanted(kind="bytes", size=100_000, pieces=1000, wait=0.05, chunked=True)
    return wanted(kind="hang")


async def leave(port: int, phase: Phase, way: Way, reached: Reached) -> None:
    """Begin a request, wait until it is in ``phase`` and ``reached`` returns, and leave."""
    async with asyncio.timeout(LIMIT_SECONDS):
        if way.startswith("http1"):
            await _leave_http1(port, phase, reached, reset=way == "http1-reset")
        else:
            await _leave_http2(port, phase, reached, way=way)


async def _leave_http1(port: int, phase: Phase, reached: Reached, *, reset: bool) -> None:
    async with _ends(http1.Connection(port), reset=reset) as connection:
        if phase == "upgrade":
            await connection.send_head("GET", "/v1/realtime", UPGRADE)
            assert (await connection.read_head()).status == 101
            await connection.send(b"hello")
            assert await connection.reader.readexactly(5) == b"hello"
        else:
            length = {"content-length": str(len(PROMPT))}
            await connection.send_head("POST", CHAT, {**asked(phase), **length})
            await connection.send(PROMPT[:9] if phase == "body" else PROMPT)
        if phase == "answer":
            await anext(connection.pieces(await connection.read_head()))
        await reached()


@contextlib.asynccontextmanager
async def _ends(connection: http1.Connection, *, reset: bool) -> AsyncIterator[http1.Connection]:
    async with connection:
        yield connection
        if reset:
            end = connection.writer.get_extra_info("socket")
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


async def _leave_http2(port: int, phase: Phase, reached: Reached, *, way: Way) -> None:
    async with http2.Connection(port) as connection:
        number = connection.send_head("POST", CHAT, asked(phase), last=False)
        whole = phase != "body"
        connection.send_data(number, PROMPT if whole else PROMPT[:9], last=whole)
        if phase == "answer":
            while not connection.streams[number].data:
                await asyncio.sleep(0.01)
        await reached()
        if way == "http2-stream":
            connection.reset(number)
        elif way == "http2-reset":
            connection.abort()
