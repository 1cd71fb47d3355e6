"""Child processes of demo, bench and tests: started, awaited until ready, never left behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

READY_SECONDS = 30.0
STOP_SECONDS = 10.0
LINE_BYTES = 2**16


class Child:
    """A running process whose first line on stdout says that it is ready."""

    def __init__(self, process: asyncio.subprocess.Process, first_line: str, log: Path) -> None:
        self.process = process
        self.first_line = first_line
        self.log = log  #: where its stderr goes

    @property
    def pid(self) -> int:
        return self.process.pid

    def kill(self) -> None:
        """Kill at once, as an out-of-memory killer would."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()

    async def stop(self, *, seconds: float = STOP_SECONDS) -> int:
        """Ask it to end, kill it if it does not; return its exit status."""
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(seconds):
                    await self.process.wait()
            except TimeoutError:
                self.kill()
        return await self.process.wait()


@contextlib.asynccontextmanager
async def running(command: Sequence[str], log: Path) -> AsyncIterator[Child]:
    """Run ``command`` until the block ends; entered once it printed its first line.

    Raises:
        RuntimeError: it ended, or said nothing within `READY_SECONDS`; the message has its log.
    """
    with log.open("wb") as stderr:
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=stderr, limit=LINE_BYTES,
            start_new_session=True,
        )  # fmt: skip
    child = Child(process, "", log)
    try:
        child.first_line = await _first_line(process, command, log)
        yield child
    finally:
        await child.stop()


async def _first_line(
    process: asyncio.subprocess.Process, command: Sequence[str], log: Path
) -> str:
    if process.stdout is None:
        raise RuntimeError("the child has no stdout")
    try:
        async with asyncio.timeout(READY_SECONDS):
            line = await process.stdout.readline()
    except TimeoutError:
        line = b""
    if not line:
        tail = log.read_text(errors="replace")[-2000:]  # noqa: ASYNC240 - we are giving up
        raise RuntimeError(f"{' '.join(command[:6])} did not become ready:\n{tail}")
    return line.decode().strip()


def resident_bytes(pid: int) -> int:
    """Memory that a process has now, from ``/proc``."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def epp(*arguments: str) -> list[str]:
    """The command line that runs this very program's ``epp``."""
    return [sys.executable, "-m", "epp", *arguments]
