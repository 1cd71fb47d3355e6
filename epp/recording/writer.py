"""Writes lines to a file, in a thread of its own, and keeps the file small.

Whoever hands something in never waits: if the thread cannot follow, or the disk cannot, it is
dropped and counted. A full file is compressed and put aside as ``FILE.1.gz``, older ones move up,
the oldest is deleted. Only one process writes a file: it holds a lock on ``FILE.lock``.
"""

from __future__ import annotations

import fcntl
import gzip
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import IO, Generic, TypeVar

from epp.errors import ConfigError

QUEUED = 1024  #: items waiting at most
BATCH = 64  #: items written before the file is flushed
TICK_SECONDS = 0.5  #: between looks at whether to stop
CLOSE_SECONDS = 5.0  #: for what still waits when it is told to stop
LEVEL = 6  #: of gzip
OWNER_ONLY = 0o600

Item = TypeVar("Item")


class RollingFile:
    """A file that is put aside when it is full.

    Args:
        path: of the file.
        most_bytes: of it, before it is compressed.
        kept: files put aside.
    """

    def __init__(self, path: Path, most_bytes: int, kept: int) -> None:
        self._path = path
        self._most_bytes = most_bytes
        self._kept = kept
        self._file: IO[bytes] | None = None
        self._lock: IO[bytes] | None = None
        self._size = 0

    def open(self) -> None:
        """Open it, to be continued.

        Raises:
            ConfigError: it cannot be written, or somebody else writes it.
        """
        try:
            self._lock = _owned(self._path.with_name(f"{self._path.name}.lock"))
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._begin()
        except BlockingIOError as error:
            self.close()
            raise ConfigError(f"{self._path}: another picker records there") from error
        except OSError as error:
            self.close()
            raise ConfigError(f"cannot record: {error}") from error

    def write(self, data: bytes) -> None:
        """Append ``data``.

        Raises:
            OSError: the disk does not take it.
        """
        if self._file is None or self._size + len(data) > self._most_bytes:
            self._roll()
        if self._file is not None:
            self._file.write(data)
            self._size += len(data)

    def flush(self) -> None:
        """Hand to the system what was written.

        Raises:
            OSError: the disk does not take it.
        """
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        """Close it and let others have it."""
        for each in (self._file, self._lock):
            if each is not None:
                each.close()
        self._file = self._lock = None

    def _begin(self) -> None:
        self._file = _owned(self._path)
        self._size = self._path.stat().st_size
        if self._size and not _ends_whole(self._path):
            self._file.write(b"\n")  # its writer was killed in the middle of a line
            self._size += 1

    def _roll(self) -> None:
        """Put the file aside and begin another."""
        if self._file is not None:
            file, self._file = self._file, None
            file.close()
        if self._size:
            for number in range(self._kept, 1, -1):
                older = self._aside(number - 1)
                if older.exists():
                    older.replace(self._aside(number))
            if self._kept:
                self._compress()
            self._path.unlink(missing_ok=True)
        self._begin()

    def _compress(self) -> None:
        with (
            self._path.open("rb") as source,
            _owned(self._aside(1), truncate=True) as raw,
            gzip.open(raw, "wb", compresslevel=LEVEL) as packed,
        ):
            shutil.copyfileobj(source, packed)

    def _aside(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}.gz")


class Writer(Generic[Item]):
    """A thread that turns items into lines and writes them.

    Args:
        file: where they go.
        encode: turns an item into a line; it runs in the thread.
    """

    def __init__(self, file: RollingFile, encode: Callable[[Item], bytes]) -> None:
        self.written = 0
        self.overflowed = 0  #: items dropped since the thread could not follow
        self.failed = 0  #: items dropped since the disk, or a bug, did not let them be written
        self.last_error = ""  #: a type of error, for the log
        self._file = file
        self._encode = encode
        self._queue: SimpleQueue[Item] = SimpleQueue()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="recording", daemon=True)

    def start(self) -> None:
        """Start the thread. See `RollingFile.open` for what it raises."""
        self._file.open()
        self._thread.start()

    def put(self, item: Item) -> None:
        """Hand in ``item``; never waits."""
        if self._queue.qsize() >= QUEUED:
            self.overflowed += 1
        else:
            self._queue.put(item)

    def stop(self) -> None:
        """Write what waits, for at most `CLOSE_SECONDS`, and close the file."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(CLOSE_SECONDS)
        if not self._thread.is_alive():
            self._file.close()

    def _work(self) -> None:
        while not (self._stopping.is_set() and self._queue.empty()):
            try:
                item = self._queue.get(timeout=TICK_SECONDS)
            except Empty:
                continue
            self._take(item)

    def _take(self, item: Item) -> None:
        """Write ``item`` and what waits behind it, then flush."""
        taken = 1
        lines = self._lines(item)
        while taken < BATCH and not self._queue.empty():
            lines += self._lines(self._queue.get())
            taken += 1
        try:
            for line in lines:
                self._file.write(line)
            self._file.flush()
        except OSError as error:
            self.failed += len(lines)
            self.last_error = error.strerror or type(error).__name__
        else:
            self.written += len(lines)

    def _lines(self, item: Item) -> list[bytes]:
        try:
            return [self._encode(item)]
        except Exception as error:  # noqa: BLE001 - one odd request must not end the recording
            self.failed += 1
            self.last_error = type(error).__name__
            return []


def _ends_whole(path: Path) -> bool:
    """Whether the last line of a file that is not empty has its end."""
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() == b"\n"


def _owned(path: Path, *, truncate: bool = False) -> IO[bytes]:
    """Open ``path`` so that only its owner may read it."""
    how = os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if truncate else os.O_APPEND)
    return os.fdopen(os.open(path, how, OWNER_ONLY), "wb")
