"""Simulated engines of one process, each on an address of its own, started and stopped by name.

Reads one JSON array a line, ``["start", name, host]`` or ``["stop", name, ""]``, and prints the
name when it is done. A stop is what SIGTERM is to ``epp engine``.
"""

from __future__ import annotations

import argparse
import asyncio
import sys

import msgspec
import uvloop

from epp.sim.options import EngineOptions
from epp.sim.server import EngineServer

MODELS = ("sim", "small", "large")
FINISH_SECONDS = 20.0  #: for what is under way when an engine is stopped


class Host:
    """The engines that run."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._engines: dict[str, EngineServer] = {}

    async def do(self, verb: str, name: str, host: str) -> None:
        """Obey one line, and say so."""
        if verb == "start":
            options = EngineOptions(
                host=host, port=self._port, name=name, models=MODELS, kv_blocks=4096,
                shutdown_timeout=FINISH_SECONDS,
            )  # fmt: skip
            self._engines[name] = EngineServer(options)
            await self._engines[name].start()
        else:
            await self._engines.pop(name).stop()
        print(name, flush=True)


async def main(port: int) -> None:
    """Obey until the input ends."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    host, tasks = Host(port), set()
    while line := await reader.readline():
        task = asyncio.create_task(host.do(*msgspec.json.decode(line, type=tuple[str, str, str])))
        tasks.add(task)
        task.add_done_callback(tasks.discard)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    uvloop.run(main(parser.parse_args().port))
