"""A TCP relay on a loopback port whose connections can be cut, in a thread of its own.

::

    with Relay() as relay:
        relay.target = stack.ports.grpc
        relay.cut()  # all connections end with RST; new ones are let through again
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from typing import Any, Self, TypeVar

READ_BYTES = 2**16
WAIT_SECONDS = 5.0

Value = TypeVar("Value")


class Relay:
    """Passes bytes both ways to ``target``, a port of ``host``; 0 refuses."""

    def __init__(self) -> None:
        self.port = 0
        self.host = "127.0.0.1"
        self.target = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._ends: set[asyncio.StreamWriter] = set()
        self._passing: set[asyncio.Task[None]] = set()

    def __enter__(self) -> Self:
        self._thread.start()
        self._server = self._run(asyncio.start_server(self._connected, "127.0.0.1", 0))
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *exc: object) -> None:
        self._run(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WAIT_SECONDS)
        self._loop.close()

    def cut(self) -> int:
        """End every connection; return how many there were."""
        return self._run(self._cut())

    def _run(self, work: Coroutine[Any, Any, Value]) -> Value:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(WAIT_SECONDS)

    async def _cut(self) -> int:
        ends = list(self._ends)
        for writer in ends:
            writer.transport.abort()
        if self._passing:
            await asyncio.wait(self._passing, timeout=WAIT_SECONDS)
        return len(ends) // 2

    async def _stop(self) -> None:
        self._server.close()
        await self._cut()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._passing.add(task)
        task.add_done_callback(self._passing.discard)
        self._ends.add(writer)
        try:
            await self._pass(reader, writer)
        finally:
            self._ends.discard(writer)
            writer.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection(self.host, self.target)
        except OSError:
            return
        self._ends.add(back)
        try:
            await asyncio.gather(_copy(reader, back), _copy(there, writer))
        finally:
            self._ends.discard(back)
            back.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(READ_BYTES):
            writer.write(data)
            await writer.drain()
    writer.transport.abort()
