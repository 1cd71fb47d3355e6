"""A model server for end-to-end tests: HTTP/1.1 by hand, so that it can misbehave on the wire.

``python -m tests.support.backend --name b0 --port 0`` prints its port as JSON. What it answers is
told by the request's ``x-answer`` header, made by `wanted`; without one it answers ``{}``.
``GET /metrics`` shows what a vLLM server would (running requests are real), ``GET /counts`` a
`Counts`. An ``upgrade`` header gets 101, then every byte back. Each answer names its server in
``x-backend``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import socket
import struct
from typing import Any, Literal

import msgspec
import uvloop

ANSWER = "x-answer"
LINE_BYTES = 2**20


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a request wants to be answered."""

    kind: Literal["json", "echo", "seen", "bytes", "hang", "drop"] = "json"
    """json: ``text``. echo: the request's body. seen: a `Seen`. bytes: `body`. hang: read the
    request, never answer. drop: read the request, close."""
    text: str = "{}"  #: of kind json
    size: int = 0  #: of kind bytes
    seed: int = 0  #: of kind bytes
    status: int = 200
    headers: dict[str, str] = {}
    chunked: bool = False  #: else content-length
    until_close: bool = False  #: neither: the body ends with the connection
    pieces: int = 1  #: in how many writes the body goes out
    wait: float = 0.0  #: seconds before each piece
    trailers: dict[str, str] = {}  #: sent if ``chunked``
    die_after: int | None = None  #: body bytes after which the connection ends
    linger: float = 0.0  #: seconds before it ends so
    reset: bool = False  #: it ends with RST instead of FIN
    dropped_by: str = ""  #: the name of a server that does as of kind drop


class Seen(msgspec.Struct, frozen=True):
    """A request as it arrived."""

    method: str
    path: str
    headers: list[tuple[str, str]]  #: names in lower case
    body: bytes
    trailers: list[tuple[str, str]] = []

    def get(self, name: str, default: str = "") -> str:
        return dict(self.headers).get(name, default)


class Counts(msgspec.Struct):
    """What a server has lived through; of requests with `Answer`, not of scrapes."""

    requests: int = 0  #: arrived whole
    finished: int = 0  #: answered as wanted
    cut: int = 0  #: the other side left before the answer was whole
    running: int = 0


def wanted(**fields: Any) -> dict[str, str]:
    """The header that asks for `Answer` with ``fields``."""
    return {ANSWER: msgspec.json.encode(Answer(**fields)).decode()}


def body(size: int, seed: int) -> bytes:
    """The body of kind bytes."""
    return random.Random(seed).randbytes(size)


class Server:
    """Answers each connection's requests one after the other."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.counts = Counts()

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while (seen := await read(reader)) is not None and not writer.is_closing():
                if seen.get("upgrade"):
                    await self._upgrade(seen, reader, writer)
                    break
                await self._answer(seen, reader, writer)
        writer.close()

    async def _answer(
        self, seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if seen.path == "/metrics":
            await self._send(Answer(), self._metrics(), writer)
            return
        if seen.path == "/counts":
            await self._send(Answer(), msgspec.json.encode(self.counts), writer)
            return
        counts = self.counts
        counts.requests += 1
        counts.running += 1
        try:
            done = await self._try(seen, reader, writer)
            counts.finished += done
            counts.cut += not done
        finally:
            counts.running -= 1

    async def _try(
        self, seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Answer; return whether the other side stayed until the end."""
        answer = msgspec.json.decode(seen.get(ANSWER, "{}").encode("latin-1"), type=Answer)
        if answer.kind == "drop" or answer.dropped_by == self.name:
            _end(writer, reset=answer.reset)
            return True
        if answer.kind == "hang":
            await reader.read(1)
            writer.close()
            return False
        data = b"" if seen.method == "HEAD" else self._body(answer, seen)
        try:
            await self._send(answer, data, writer, head_only=seen.method == "HEAD")
        except ConnectionError:
            return False
        return True

    def _body(self, answer: Answer, seen: Seen) -> bytes:
        if answer.kind == "echo":
            return seen.body
        if answer.kind == "seen":
            return msgspec.json.encode(seen)
        return body(answer.size, answer.seed) if answer.kind == "bytes" else answer.text.encode()

    async def _send(
        self, answer: Answer, data: bytes, writer: asyncio.StreamWriter, *, head_only: bool = False
    ) -> None:
        writer.write(self._head(answer, answer.size if head_only else len(data)))
        if not head_only and answer.status not in (204, 304):
            await self._pieces(answer, data[: answer.die_after], writer)
            if answer.die_after is not None or answer.until_close:
                await asyncio.sleep(answer.linger)
                _end(writer, reset=answer.reset)
                return
            if answer.chunked:
                trailers = "".join(f"{k}: {v}\r\n" for k, v in answer.trailers.items())
                writer.write(f"0\r\n{trailers}\r\n".encode())
        await writer.drain()

    def _head(self, answer: Answer, length: int) -> bytes:
        headers = {"x-backend": self.name}
        if answer.chunked:
            headers["transfer-encoding"] = "chunked"
        elif answer.until_close:
            headers["connection"] = "close"
        elif answer.status not in (204, 304):
            headers["content-length"] = str(length)
        lines = [f"{name}: {value}" for name, value in (headers | answer.headers).items()]
        return "\r\n".join([f"HTTP/1.1 {answer.status} Status", *lines, "", ""]).encode()

    async def _pieces(self, answer: Answer, data: bytes, writer: asyncio.StreamWriter) -> None:
        step = max(1, -(-len(data) // answer.pieces))
        for start in range(0, len(data), step):
            await asyncio.sleep(answer.wait)
            piece = data[start : start + step]
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece) if answer.chunked else piece)
            await writer.drain()
            if writer.is_closing():
                raise ConnectionResetError

    async def _upgrade(
        self, seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        writer.write(
            b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\n"
            b"upgrade: %b\r\nx-backend: %b\r\n\r\n"
            % (seen.get("upgrade").encode(), self.name.encode())
        )
        self.counts.requests += 1
        self.counts.running += 1
        try:
            while data := await reader.read(LINE_BYTES):
                writer.write(data)
                await writer.drain()
        finally:
            self.counts.running -= 1

    def _metrics(self) -> bytes:
        return (
            f'vllm:num_requests_running{{engine="0",model_name="test"}} {self.counts.running}\n'
            'vllm:num_requests_waiting{engine="0",model_name="test"} 0\n'
            'vllm:kv_cache_usage_perc{engine="0",model_name="test"} 0\n'
        ).encode()


async def read(reader: asyncio.StreamReader) -> Seen | None:
    """Read one request; None if the connection ended before it."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.splitlines()
    method, path, _ = first.split(" ", 2)
    headers = [_field(line) for line in lines if line]
    named = dict(headers)
    if named.get("transfer-encoding") == "chunked":
        data, trailers = await _chunked(reader)
        return Seen(method, path, headers, data, trailers)
    data = await reader.readexactly(int(named.get("content-length", "0")))
    return Seen(method, path, headers, data)


async def _chunked(reader: asyncio.StreamReader) -> tuple[bytes, list[tuple[str, str]]]:
    chunks: list[bytes] = []
    while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        chunks.append(await reader.readexactly(size))
        await reader.readexactly(2)
    trailers: list[tuple[str, str]] = []
    while line := (await reader.readuntil(b"\r\n")).decode("latin-1").strip():
        trailers.append(_field(line))
    return b"".join(chunks), trailers


def _field(line: str) -> tuple[str, str]:
    name, _, value = line.partition(":")
    return name.strip().lower(), value.strip()


def _end(writer: asyncio.StreamWriter, *, reset: bool) -> None:
    if reset:
        linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.close()


async def main(name: str, port: int) -> None:
    """Listen until killed."""
    server = await asyncio.start_server(
        Server(name).connected, "127.0.0.1", port, limit=LINE_BYTES, backlog=1024
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", default="backend")
    parser.add_argument("--port", type=int, default=0)
    parsed = parser.parse_args()
    uvloop.run(main(parsed.name, parsed.port))
