"""The process that hosts simulated engines, from a test's side."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from epp.local.fleet import free_port

ROOT = Path(__file__).parents[3]
MODULE = "tests.support.cluster.engine_host"
ANSWER_SECONDS = 40.0
END_SECONDS = 10.0


class Engines:
    """Starts and stops engines, all on one port, each on a loopback address of its own."""

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self.port = port
        self._process = process
        self._waiting: dict[str, asyncio.Future[None]] = {}
        self._last = 0

    def address(self) -> str:
        """A loopback address that no engine had before."""
        self._last += 1
        return f"127.77.{self._last >> 8}.{(self._last & 255) or 255}"

    async def start(self, name: str, host: str) -> None:
        """Have an engine listen."""
        await self._say("start", name, host)

    async def stop(self, name: str) -> None:
        """Have an engine finish what it has, and end."""
        await self._say("stop", name, "")

    async def listen(self) -> None:
        """Hear what is done, until the process ends."""
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            self._waiting.pop(line.decode().strip()).set_result(None)

    async def _say(self, verb: str, name: str, host: str) -> None:
        assert self._process.stdin is not None
        done = self._waiting[name] = asyncio.get_running_loop().create_future()
        self._process.stdin.write(msgspec.json.encode([verb, name, host]) + b"\n")
        async with asyncio.timeout(ANSWER_SECONDS):
            await done


@contextlib.asynccontextmanager
async def engines() -> AsyncIterator[Engines]:
    """The process, ended with the block."""
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", MODULE, f"--port={port}", cwd=ROOT,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    made = Engines(process, port)
    hearing = asyncio.create_task(made.listen())
    try:
        yield made
    finally:
        process.kill()
        async with asyncio.timeout(END_SECONDS):
            await asyncio.gather(process.wait(), hearing)
