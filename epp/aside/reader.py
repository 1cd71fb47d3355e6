"""The owner of the reading process: one body at a time, each within a bounded time.

A body that is not read in time, or ends the process, is routed by load and counted as unread
("too-slow"). The process starts when it is needed, again if it ended, and is stopped when nothing
came for a while.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

import epp
from epp.aside.letters import LENGTHS, Read, asked, pack, read_of, understood, with_body
from epp.clock import Clock
from epp.disagg.strip import without_transfer
from epp.errors import BadRequest
from epp.formats import path_of
from epp.formats.reading import opaque
from epp.formats.weight import LIGHT_BYTES
from epp.model import Arrival
from epp.pipeline import Formats

COMMAND = (sys.executable, "-m", "epp.aside.child")
MOST_BYTES = 256 << 20  #: of an answer; a prompt is no longer than four times its body
READ_AHEAD_BYTES = 1 << 20  #: of an answer

_LEFT = Arrival("", {})

log = logging.getLogger(__name__)


class Waits(msgspec.Struct, frozen=True):
    """How long, in seconds."""

    patience: float = 4.0  #: for one body: its turn, the start of the process, and its reading
    starting: float = 2.0  #: of the process, added to the reading of its first body
    reading: float = 2.0  #: by the process, of one body
    idle: float = 120.0  #: until the process is stopped


class ProcessEnded(Exception):
    """The process ended over a body, or was too slow and was ended."""


class Job:
    """A body to be read, and who waits for it."""

    __slots__ = ("answer", "arrival", "parsers")

    def __init__(self, parsers: Sequence[str], arrival: Arrival) -> None:
        self.parsers = parsers
        self.arrival = arrival
        self.answer: asyncio.Future[tuple[Read, bytes]] = asyncio.Future()

    def leave(self) -> None:
        """Nobody waits any more: keep nothing of the body until the job's turn comes."""
        self.arrival = _LEFT

    def fail(self) -> None:
        """Tell who waits that it was not read."""
        if not self.answer.done():
            self.answer.set_exception(ProcessEnded())


class AsideReader:
    """Reads heavy bodies in a process of its own (see `router.Reader`).

    Args:
        clock: stamps the requests.
        command: of the process; it is told which CPUs it may use.
        waits: are bounded by these.
    """

    def __init__(
        self, clock: Clock, *, command: Sequence[str] = COMMAND, waits: Waits | None = None
    ) -> None:
        self._clock = clock
        self._waits = waits or Waits()
        # As they are now: later the picker keeps itself to one of them.
        self._command = (*command, ",".join(map(str, sorted(os.sched_getaffinity(0)))))
        self._jobs: asyncio.Queue[Job] = asyncio.Queue()
        self._worker: asyncio.Task[None] | None = None
        self._child: Child | None = None

    @property
    def pid(self) -> int | None:
        """The process's id; None while there is none."""
        return None if self._child is None else self._child.process.pid

    async def read(self, arrival: Arrival, formats: Formats) -> Arrival:
        """See `router.Reader.read`.

        Raises:
            BadRequest: the body claims to be JSON and is not, or may say where a KV cache is and
                could not be looked at in time.
            RuntimeError: a parser failed.
        """
        parsers = formats.aside(arrival)
        if not parsers:
            return arrival
        job = Job(parsers, arrival)
        self._jobs.put_nowait(job)
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work(), name="aside")
        now = self._clock.now()
        try:
            read, data = await asyncio.wait_for(job.answer, self._waits.patience)
        except (TimeoutError, ProcessEnded):
            arrival = without_transfer(arrival, most=LIGHT_BYTES)
            request = opaque(arrival, path_of(arrival), now, "too-slow")
            return understood(request, b"", arrival, now)
        finally:
            job.leave()
        if read.refused:
            raise BadRequest(read.refused)
        if read.request is None:
            raise RuntimeError(f"a parser failed: {read.failed}")
        arrival, prompt = with_body(read, data, arrival)
        return understood(read.request, prompt, arrival, now)

    async def close(self) -> None:
        """End the process; bodies that still wait are routed unread."""
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.wait({self._worker})
        while not self._jobs.empty():
            self._jobs.get_nowait().fail()

    async def _work(self) -> None:
        """Read one body after the other, until none came for a while."""
        try:
            while True:
                try:
                    async with asyncio.timeout(self._waits.idle):
                        job = await self._jobs.get()
                except TimeoutError:
                    await self._end()
                    if self._jobs.empty():
                        return
                    continue
                if not job.answer.done():  # somebody waits for it still
                    await self._settle(job)
        finally:
            await self._end()

    async def _settle(self, job: Job) -> None:
        try:
            async with asyncio.timeout(self._waits.reading + self._starting()):
                answer = await self._ask(job)
        except (OSError, EOFError, TimeoutError, msgspec.MsgspecError) as error:
            log.warning("a body could not be read aside (%s)", type(error).__name__)
            job.fail()
            await self._end()
            return
        except asyncio.CancelledError:
            job.fail()
            raise
        if not job.answer.done():
            job.answer.set_result(answer)

    def _starting(self) -> float:
        return self._waits.starting if self._child is None else 0.0

    async def _ask(self, job: Job) -> tuple[Read, bytes]:
        if self._child is None:
            self._child = await Child.start(self._command)
        asks, answers = self._child.asks, self._child.answers
        asks.writelines(pack(asked(job.parsers, job.arrival), job.arrival.body))
        await asks.drain()
        record, size = LENGTHS.unpack(await answers.readexactly(LENGTHS.size))
        if max(record, size) > MOST_BYTES:
            raise EOFError
        read = read_of(await answers.readexactly(record))
        return read, await answers.readexactly(size)

    async def _end(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            await child.end()


class Child:
    """The running process and both ends of its socket."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        answers: asyncio.StreamReader,
        asks: asyncio.StreamWriter,
    ) -> None:
        self.process = process
        self.answers = answers
        self.asks = asks

    @classmethod
    async def start(cls, command: Sequence[str]) -> Child:
        """Start it.

        `subprocess` uses vfork, which takes no longer with a large index; the loop's own way forks.

        Raises:
            OSError: it cannot be started.
        """
        path = (str(Path(epp.__file__).parents[1]), os.environ.get("PYTHONPATH", ""))
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                process = subprocess.Popen(  # noqa: S603, ASYNC220 - our own command, see above
                    command,
                    stdin=theirs.fileno(),
                    stdout=theirs.fileno(),
                    stderr=subprocess.DEVNULL,  # what fails there may quote a prompt
                    env={
                        **os.environ,
                        "PYTHONPATH": os.pathsep.join(filter(None, path)),
                        "OPENBLAS_NUM_THREADS": "1",
                    },
                )
            except OSError:
                ours.close()
                raise
        return cls(process, *await asyncio.open_connection(sock=ours, limit=READ_AHEAD_BYTES))

    async def end(self) -> None:
        """Kill it, whatever it does."""
        self.asks.transport.abort()
        self.process.kill()
        await asyncio.to_thread(self.process.wait)
