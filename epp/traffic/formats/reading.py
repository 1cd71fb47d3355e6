"""What all readers of traces share: lines to records, and no line lost without a word.

A line that cannot be read becomes a `Bad`, with its file and number; whoever asked for the trace
decides whether that is an error. Nothing is guessed.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Protocol

import msgspec

from epp.recording.record import Line, Record, record_of, shortened
from epp.traffic.trace import Bad

NESTED = "it is nested too deep"

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
        told = {name: value for name, value in row.items() if value is not None}
        return of(renamed(told, source.columns))

    for where, line in numbered(source):
        yield attempted(where, partial(one, line))


def table(source: Source, of: Callable[[Row], Record]) -> Found:
    """Read CSV with a line of column names."""
    lines = numbered(source)
    first, header = next(lines, ("", ""))
    try:
        names = [source.columns.get(name, name) for name in _cells(header)]
    except csv.Error as error:
        yield Bad(first, str(error))
        return
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        yield Bad(first, f"column {twice[0]!r} is there twice")
        return

    def one(line: str) -> Record:
        cells = _cells(line)
        if len(cells) != len(names):
            raise ValueError(f"{len(cells)} cells under {len(names)} columns")
        return of(dict(zip(names, cells, strict=True)))

    for where, line in lines:
        yield attempted(where, partial(one, line))


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in next(csv.reader([line], skipinitialspace=True), [])]


def number(row: Row, name: str) -> float:
    """Return what a row tells under ``name``: a number that is not negative.

    Raises:
        KeyError: nothing.
        ValueError: anything else; the message says what.
    """
    told = row[name]
    try:
        found = math.nan if isinstance(told, bool) else float(told)
    except (TypeError, ValueError):
        found = math.nan
    if not 0.0 <= found < math.inf:
        raise ValueError(f"{name} is {told!r}, which is no number from 0 on")
    return found


def whole(row: Row, name: str) -> int:
    """Return `number`, which has no fraction.

    Raises:
        KeyError: there is none.
        ValueError: it is no such number; the message says what is there.
    """
    found = number(row, name)
    if found != int(found):
        raise ValueError(f"{name} is {row[name]!r}, which is no whole number")
    return int(found)


def delayed() -> Callable[[Row], Row]:
    """Return what gives a time to a turn that tells its delay after the last one of its session."""
    last: dict[str, float] = {}

    def timed(row: Row) -> Row:
        session = str(row.get("session_id", ""))
        if "timestamp" not in row and "delay" in row:
            delay = number(row, "delay")
            if session not in last:
                raise ValueError("it has a delay, but no request of its session is before it")
            row = {**row, "timestamp": last[session] + delay, "think_ms": delay}
        if "timestamp" in row:
            last[session] = number(row, "timestamp")
        return row

    return timed


def attempted(where: str, read: Callable[[], Record]) -> Record | Bad:
    """Return what ``read`` does; what it raises is said of the place."""
    try:
        return read()
    except msgspec.DecodeError as error:
        return Bad(where, str(error))
    except KeyError as error:
        return Bad(where, f"it has no {error.args[0]!r}")
    except RecursionError:
        return Bad(where, NESTED)
    except (ValueError, TypeError, OverflowError, csv.Error) as error:
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
