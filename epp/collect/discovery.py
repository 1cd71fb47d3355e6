"""Endpoints from a YAML file, watched.

A bad file at the start is an error. Later it changes nothing: it is reported, and the pool stays
as it was. If only some entries are bad, the others are applied, and an endpoint whose entry
turned bad stays as it was until its entry is good or gone. So no typo stops the rest of
the fleet from changing, and none takes an endpoint out of service.

The file is polled: that sees a ConfigMap's symlink swap, an editor's rename and a network file
system alike.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

from epp.collect.parse.endpoints import MAX_FILE_BYTES, Parsed, kept, parse_file
from epp.collect.static import apply
from epp.errors import ConfigError
from epp.model import Endpoint
from epp.pool import Pool

POLL_SECONDS = 1.0

Stamp = tuple[int, int, int]  #: of a file's version: when it changed, its size, its inode


class EndpointsFile:
    """Keeps the pool as a file says."""

    def __init__(
        self,
        path: str | Path,
        *,
        watch: bool = True,
        report: Callable[[str], None] = lambda _: None,
        poll_seconds: float = POLL_SECONDS,
    ) -> None:
        """Read ``path``.

        Args:
            path: the file.
            watch: look for changes for ever; else read it once.
            report: is told what is wrong with a changed file, once per change.
            poll_seconds: between two looks at the file.
        """
        self._path = Path(path)
        self._watch = watch
        self._report = report
        self._poll_seconds = poll_seconds
        self._text: bytes | None = None
        self._stamp: Stamp | None = None
        self._complaint = ""
        self._endpoints: tuple[Endpoint, ...] = ()

    def load(self, pool: Pool) -> None:
        """Fill the pool from the file as it is.

        Raises:
            ConfigError: the file cannot be read, or anything in it is wrong.
        """
        try:
            self._stamp, text = _read(self._path)
            parsed = parse_file(text)
        except (OSError, ValueError) as error:
            raise ConfigError(f"endpoints file {self._path}: {error}") from error
        if parsed.problems:
            raise ConfigError(f"endpoints file {self._path}: {parsed.problems[0].text}")
        self._text = text
        self._take(pool, parsed)
        pool.synced = True

    async def run(self, pool: Pool) -> None:
        """Load the file if `load` was not called, then follow it for ever (if ``watch``).

        Raises:
            ConfigError: see `load`.
        """
        if self._text is None:
            self.load(pool)
        while self._watch:
            await asyncio.sleep(self._poll_seconds)
            await self._look(pool)

    async def _look(self, pool: Pool) -> None:
        try:
            stamp = await asyncio.to_thread(_stamp, self._path)
            if stamp == self._stamp:
                return
            await asyncio.to_thread(_check, self._path)
            self._stamp, text = await asyncio.to_thread(_read, self._path)
            if text == self._text:
                self._complaint = ""
                return
            parsed = await asyncio.to_thread(parse_file, text)
        except (OSError, ValueError) as error:
            self._complain(f"{error}; the endpoints stay as they were")
            return
        self._text = text
        self._complaint = ""
        for problem in parsed.problems[:1]:
            count = len(parsed.problems)
            self._complain(
                f"{problem.text}; {count} bad of {count + len(parsed.endpoints)} entries"
            )
        self._take(pool, parsed)

    def _take(self, pool: Pool, parsed: Parsed) -> None:
        after = kept(self._endpoints, parsed)
        apply(pool, self._endpoints, after)
        self._endpoints = after

    def _complain(self, text: str) -> None:
        if text != self._complaint:
            self._complaint = text
            self._report(f"endpoints file {self._path}: {text}")


def _check(path: Path) -> None:
    """Refuse to read what is no file: a pipe would be waited for, for ever."""
    if not path.is_file():
        raise ValueError("it is no file any more")


def _stamp(path: Path) -> Stamp:
    status = os.stat(path)  # noqa: PTH116 - a symlink is followed on purpose
    return status.st_mtime_ns, status.st_size, status.st_ino


def _read(path: Path) -> tuple[Stamp, bytes]:
    stamp = _stamp(path)
    with path.open("rb") as file:
        return stamp, file.read(MAX_FILE_BYTES + 1)
