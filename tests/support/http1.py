"""An HTTP/1.1 client by hand: every byte is the test's, trailers, chunks and upgrades included."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Self

import msgspec

LIMIT_SECONDS = 60.0


class Answer(msgspec.Struct):
    """A whole answer."""

    status: int
    headers: dict[str, str]  #: names in lower case
    body: bytes = b""
    trailers: dict[str, str] = {}
    interim: list[int] = []  #: statuses below 200 that came before


class Connection:
    """One connection; ``async with Connection(port) as connection``."""

    def __init__(self, port: int) -> None:
        self.port = port

    async def __aenter__(self) -> Self:
        self.reader, self.writer = await asyncio.open_connection(
            "127.0.0.1", self.port, limit=2**20
        )
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()

    async def send_head(self, method: str, path: str, headers: Mapping[str, str]) -> None:
        lines = [f"{method} {path} HTTP/1.1", "host: test"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        await self.send("\r\n".join(lines).encode() + b"\r\n\r\n")

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def send_chunk(self, data: bytes) -> None:
        await self.send(b"%x\r\n%b\r\n" % (len(data), data))

    async def end_chunks(self, trailers: Mapping[str, str] | None = None) -> None:
        lines = "".join(f"{name}: {value}\r\n" for name, value in (trailers or {}).items())
        await self.send(f"0\r\n{lines}\r\n".encode())

    async def read_head(self) -> Answer:
        """Read the next answer's head, interim ones (100) included."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.splitlines()
        return Answer(int(first.split(" ")[1]), dict(_field(line) for line in lines if line))

    async def pieces(self, answer: Answer) -> AsyncIterator[bytes]:
        """The body's pieces as they come; sets the answer's trailers at the end.

        Raises:
            asyncio.IncompleteReadError: the connection ended within the body.
        """
        if answer.headers.get("transfer-encoding") != "chunked":
            if "content-length" in answer.headers:
                yield await self.reader.readexactly(int(answer.headers["content-length"]))
            return
        while size := int(await self.reader.readuntil(b"\r\n"), 16):
            yield await self.reader.readexactly(size)
            await self.reader.readexactly(2)
        while line := (await self.reader.readuntil(b"\r\n")).decode("latin-1").strip():
            answer.trailers = {**answer.trailers, **dict([_field(line)])}

    async def read(self, *, body: bool = True) -> Answer:
        """Read a whole answer; ``body=False`` after a HEAD."""
        interim: list[int] = []
        while (answer := await self.read_head()).status < 200:
            interim.append(answer.status)
        answer.interim = interim
        if body and answer.status not in (204, 304):
            answer.body = b"".join([piece async for piece in self.pieces(answer)])
        return answer

    async def ask(
        self, method: str, path: str, headers: Mapping[str, str] | None = None, body: bytes = b""
    ) -> Answer:
        """Send a request, with content-length if there is a body, and read its answer."""
        length = {"content-length": str(len(body))} if body else {}
        await self.send_head(method, path, {**length, **(headers or {})})
        reading = asyncio.ensure_future(self.read(body=method != "HEAD"))
        try:
            with contextlib.suppress(ConnectionError):  # it may answer before it has it all
                await self.send(body)
            return await reading
        finally:
            reading.cancel()


async def request(
    port: int,
    method: str,
    path: str,
    headers: Mapping[str, str] | None = None,
    body: bytes | Sequence[bytes] = b"",
    *,
    trailers: Mapping[str, str] | None = None,
) -> Answer:
    """One request on a connection of its own; a sequence of bytes goes out in chunks."""
    async with asyncio.timeout(LIMIT_SECONDS), Connection(port) as connection:
        if isinstance(body, bytes):
            return await connection.ask(method, path, headers, body)
        framing = {"transfer-encoding": "chunked"}
        await connection.send_head(method, path, {**framing, **(headers or {})})
        for chunk in body:
            await connection.send_chunk(chunk)
        await connection.end_chunks(trailers)
        return await connection.read(body=method != "HEAD")


def _field(line: str) -> tuple[str, str]:
    name, _, value = line.partition(":")
    return name.strip().lower(), value.strip()
