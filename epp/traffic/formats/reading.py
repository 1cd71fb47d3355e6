"""What all readers of traces share: lines to records, and no line lost without a word.

A line that cannot be read becomes a `Bad`, with its file and number; whoever asked for the trace
decides whether that is an error. Nothing is guessed.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Protocol

import msgspec

from epp.recording.record import Line, Record, record_of, shortened
from epp.traffic.trace import Bad

Row = dict[str, Any]
Found = Iterator[Record | Bad]


class Source(msgspec.Struct, frozen=True):
    """A file's text, by lines, and what its reader is told about it."""

    name: str
    lines: Iterable[str]
    block_tokens: int  #: of lines that do not say; those that do must say the same
    columns: Mapping[str, str] = {}  #: a format's own name of a column, by the file's


class Reader(Protocol):
    """Reads one format."""

    block_tokens: int  #: of a file that does not say

    def read(self, source: Source) -> Found:
        """Return the records, and what could not be read, in the file's order."""
        ...


def numbered(source: Source) -> Iterator[tuple[str, str]]:
    """Lines that are not blank, each with its place."""
    for number, line in enumerate(source.lines, 1):
        if line.strip():
            yield f"{source.name}:{number}", line


def objects(source: Source, of: Callable[[Row], Record]) -> Found:
    """Read one JSON object per line."""

    def one(line: str) -> Record:
        row = msgspec.json.decode(line)
        if not isinstance(row, dict):
            raise TypeError(f"a line holds one object, not {type(row).__name__}")
        size = row.setdefault("block_size", source.block_tokens)
        if size != source.block_tokens:
            raise ValueError(f"block_size is {size}, but {source.block_tokens} before")
        return of(renamed(row, source.columns))

    for where, line in numbered(source):
        yield attempted(where, partial(one, line))


def table(source: Source, of: Callable[[Row], Record]) -> Found:
    """Read CSV with a line of column names."""
    lines = iter(source.lines)
    names = [source.columns.get(name, name) for name in next(csv.reader(lines), [])]

    def one(line: str) -> Record:
        cells = next(csv.reader([line]))
        if len(cells) != len(names):
            raise ValueError(f"{len(cells)} cells under {len(names)} columns")
        return of(dict(zip(names, cells, strict=True)))

    for number, line in enumerate(lines, 2):
        if line.strip():
            yield attempted(f"{source.name}:{number}", partial(one, line))


def attempted(where: str, read: Callable[[], Record]) -> Record | Bad:
    """Return what ``read`` does; what it raises is said of the place."""
    try:
        return read()
    except msgspec.DecodeError as error:
        return Bad(where, str(error))
    except KeyError as error:
        return Bad(where, f"it has no {error.args[0]!r}")
    except (ValueError, TypeError, OverflowError) as error:
        return Bad(where, str(error))


def renamed(row: Row, columns: Mapping[str, str]) -> Row:
    """Return ``row`` with the format's own names of its columns."""
    return {columns.get(name, name): value for name, value in row.items()} if columns else row


def from_line(row: Row) -> Record:
    """Read what has the names of `Line`; other names are left alone."""
    return record_of(msgspec.convert(row, Line, strict=False))


class Chains:
    """Gives numbers to blocks named by their content alone, so that a number means a prefix."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, object], int] = {}

    def runs(self, scope: object, ids: Iterable[object]) -> tuple[tuple[int, int], ...]:
        """Return the chained ids, as runs; equal ``ids`` of two scopes stay apart."""
        parent = -1
        chained: list[int] = []
        for each in ids:
            key = (parent, each if parent >= 0 else (scope, each))
            parent = self._numbers.setdefault(key, len(self._numbers))
            chained.append(parent)
        return shortened(chained)
