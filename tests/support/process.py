"""A child process of a test: its output in files, stopped or killed by its own id.

Synchronous on purpose: a part may then be shared by the tests of a module, each with an event loop
of its own. In an async test call what waits through ``asyncio.to_thread``.
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

REPOSITORY = Path(__file__).parents[2]
START_SECONDS = 30.0
STOP_SECONDS = 15.0
POLL_SECONDS = 0.02

Value = TypeVar("Value")


def eventually(read: Callable[[], Value], seconds: float = 10.0, what: str = "it") -> Value:
    """Call ``read`` until it returns something true, and return that.

    Raises:
        AssertionError: it did not within ``seconds``; says ``what`` and the last value.
    """
    deadline = time.monotonic() + seconds
    while not (value := read()):
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {seconds} s; the last was {value!r}")
        time.sleep(POLL_SECONDS)
    return value


class Process:
    """A running command; ``start`` it, again if you like after ``kill`` or ``stop``."""

    def __init__(self, name: str, command: Sequence[str], folder: Path) -> None:
        self.name = name
        self.command = list(command)
        self.out = folder / f"{name}.out"  #: stdout of the last start
        self.log = folder / f"{name}.log"  #: stderr of all starts
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._child is not None, f"{self.name} is not running"
        return self._child.pid

    @property
    def running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    def start(self) -> None:
        """Start it; what makes it ready is for the caller to wait for."""
        assert not self.running, f"{self.name} is running already"
        with self.out.open("wb") as out, self.log.open("ab") as log:
            self._child = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=out, stderr=log, cwd=REPOSITORY,
                start_new_session=True,
            )  # fmt: skip

    def first_line(self) -> str:
        """The first line it prints, waited for."""

        def line() -> str:
            assert self.running, f"{self.name} ended:\n{self.tail()}"
            text = self.out.read_text()
            return text.splitlines()[0] if "\n" in text else ""

        return eventually(line, START_SECONDS, f"the first line of {self.name}")

    def kill(self) -> None:
        """SIGKILL, as an out-of-memory killer would; returns when it is gone."""
        if self._child is not None:
            self._child.kill()
            self._child.wait(STOP_SECONDS)

    def stop(self, seconds: float = STOP_SECONDS) -> int:
        """SIGTERM; return the exit status.

        Raises:
            subprocess.TimeoutExpired: it did not end within ``seconds``.
        """
        assert self._child is not None, f"{self.name} is not running"
        self._child.terminate()
        return self.wait(seconds)

    def wait(self, seconds: float = STOP_SECONDS) -> int:
        """Wait until it ends by itself; return the exit status.

        Raises:
            subprocess.TimeoutExpired: it did not end within ``seconds``.
        """
        assert self._child is not None, f"{self.name} is not running"
        return self._child.wait(seconds)

    def signal(self, number: signal.Signals) -> None:
        """Send any signal, such as SIGTERM (without waiting) or SIGHUP."""
        assert self._child is not None, f"{self.name} is not running"
        self._child.send_signal(number)

    def pause(self) -> None:
        """SIGSTOP: it keeps its ports and connections but does nothing."""
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.signal(signal.SIGCONT)

    def tail(self, size: int = 2000) -> str:
        """The end of its log."""
        return self.log.read_text(errors="replace")[-size:] if self.log.exists() else ""
