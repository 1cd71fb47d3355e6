"""Simulated model servers for tests: in this process, or as real processes of their own."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import IO

import msgspec

from epp.sim import tokenizer
from epp.sim.options import EngineOptions
from epp.sim.server import EngineServer

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 30.0  #: bound for a process to listen
STOP_SECONDS = 10.0  #: bound for a process to end
LISTENING = "listening on http://"


def expected(prompt: str, tokens: int) -> str:
    """What an engine answers, however its prompt was computed."""
    return tokenizer.decode(tokenizer.answer(tokenizer.encode(prompt.encode()), tokens))


@contextlib.asynccontextmanager
async def served(*options: EngineOptions) -> AsyncIterator[list[tuple[EngineServer, int]]]:
    """Run engines on the running event loop; yield each with its port."""
    servers = [EngineServer(each) for each in options]
    started: list[tuple[EngineServer, int]] = []
    try:
        for server in servers:
            port = await server.start()
            started.append((server, port))
        yield started
    finally:
        for server, _ in started:
            await server.stop()


class Process:
    """One engine as a process."""

    def __init__(self, process: subprocess.Popen[str], name: str, port: int) -> None:
        self.process = process
        self.name = name
        self.port = port

    @property
    def address(self) -> str:
        """``host:port``."""
        return f"127.0.0.1:{self.port}"

    def terminate(self) -> int:
        """Send SIGTERM and wait for the exit status."""
        self.process.terminate()
        return self.process.wait(STOP_SECONDS)


def _port(stdout: IO[str], seconds: float) -> int:
    """Read the bound port from the process's first line; the wait is bounded."""
    lines: list[str] = []
    reader = threading.Thread(target=lambda: lines.append(stdout.readline()), daemon=True)
    reader.start()
    reader.join(seconds)
    line = lines[0].strip() if lines else ""
    if not line.startswith(LISTENING):
        raise RuntimeError(f"the engine said {line!r} instead of where it listens")
    return int(line.rpartition(":")[2])


def spawn(name: str = "engine", **flags: object) -> Process:
    """Start ``python -m epp engine``; flags as keywords, ``max_num_seqs=4`` for one."""
    arguments = ["--port", "0", "--name", name]
    for flag, value in flags.items():
        arguments += [f"--{flag.replace('_', '-')}", str(value)]
    return spawn_command([sys.executable, "-m", "epp", "engine", *arguments], name)


def spawn_options(options: EngineOptions) -> Process:
    """Start an engine with these options, without the command line in between."""
    code = (
        "import sys, msgspec; from epp.sim.serving import run; "
        "from epp.sim.options import EngineOptions; "
        "run(msgspec.json.decode(sys.argv[1], type=EngineOptions))"
    )
    command = [sys.executable, "-c", code, msgspec.json.encode(options).decode()]
    return spawn_command(command, options.name)


def spawn_command(command: list[str], name: str) -> Process:
    """Start a process that says where it listens."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout is not None
    try:
        return Process(process, name, _port(process.stdout, START_SECONDS))
    except BaseException:
        _reap(process)
        raise


def _reap(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.kill()
        process.wait(STOP_SECONDS)
    if process.stdout is not None:
        process.stdout.close()


@contextlib.contextmanager
def fleet(count: int, flags: Mapping[str, object] | None = None) -> Iterator[list[Process]]:
    """Run ``count`` engine processes named ``engine-0`` and so on; none is left behind."""
    processes: list[Process] = []
    try:
        processes.extend(spawn(f"engine-{index}", **(flags or {})) for index in range(count))
        yield processes
    finally:
        for each in processes:
            _reap(each.process)


@contextlib.contextmanager
def one(options: EngineOptions) -> Iterator[Process]:
    """Run one engine process with these options; it is not left behind."""
    process = spawn_options(options)
    try:
        yield process
    finally:
        _reap(process.process)
