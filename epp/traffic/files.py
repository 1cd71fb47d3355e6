"""Files of traces: opening them, telling their format, and what to do about bad lines."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import IO, cast

import msgspec

from epp.recording.record import Record, shortened
from epp.traffic.formats import (
    aiperf,
    azure,
    bailian,
    burstgpt,
    guidellm,
    inference_perf,
    log,
    mooncake,
    weka,
)
from epp.traffic.formats.reading import Reader, Source
from epp.traffic.trace import Bad, Trace, TraceError, trace_of

READERS: Mapping[str, ModuleType] = {
    "mooncake": mooncake,
    "bailian": bailian,
    "weka": weka,
    "azure": azure,
    "burstgpt": burstgpt,
    "aiperf": aiperf,
    "guidellm": guidellm,
    "log": log,
}
WRITERS = ("mooncake", "epp", "aiperf", "inference-perf")
SHOWN = 10  #: bad lines that an error names
GZIP = b"\x1f\x8b"  #: that a compressed file begins with
LARGEST = 2**40  #: id of a block that needs no other number
_BLOCKS = re.compile(r'"(hash_ids|hash_rle|block_size)"')
_SIZE = re.compile(r'"block_size"\s*:\s*(\d+)')


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """How to read files."""

    format: str = "auto"
    columns: Mapping[str, str] = {}  #: the format's name of a column, by the file's
    skip_bad: bool = False  #: leave lines out that cannot be read; the trace names them
    block_tokens: int | None = None  #: None: as the file or its format says


def read_trace(paths: Sequence[str], reading: Reading | None = None) -> Trace:
    """Read one trace out of all files.

    Blocks of different files are different, but for files of one recording: ids that are written
    as runs never name two blocks. A file of nothing, such as a recording's lock, adds nothing.

    Raises:
        TraceError: a line cannot be read, or nothing can.
    """
    reading = reading or Reading()
    if reading.format not in ("auto", *READERS):
        raise TraceError(f"format {reading.format!r} is none of auto, {', '.join(READERS)}")
    records: list[Record] = []
    bad: list[Bad] = []
    sizes: set[int] = set()
    default = 0
    for path in _files(paths):
        found = _one(path, reading)
        if found is None:
            continue
        records += _apart(_small(found.records), records) if found.numbered else found.records
        bad += found.bad
        default = default or found.block_tokens
        if found.told:
            sizes.add(found.block_tokens)
    if bad and not reading.skip_bad:
        raise TraceError(told(bad))
    if not records:
        what = "no request" if default else "nothing"
        raise TraceError(f"{', '.join(paths)}: there is {what} in it")
    if len(sizes) > 1:
        raise TraceError(f"blocks of {sorted(sizes)} tokens in one trace: read one at a time")
    return trace_of(records, sizes.pop() if sizes else default, bad)


class _Found(msgspec.Struct, frozen=True):
    """What one file holds."""

    records: list[Record]
    bad: list[Bad]
    block_tokens: int
    told: bool  #: it has blocks, of that size
    numbered: bool  #: its ids are numbers of its own


def _apart(records: Sequence[Record], others: Sequence[Record]) -> Iterator[Record]:
    """Renumber the blocks of ``records`` so that they have none in common with ``others``."""
    last = max((first + count for each in others for first, count in each.runs), default=0)
    for record in records:
        runs = tuple((first + last, count) for first, count in record.runs)
        yield msgspec.structs.replace(record, runs=runs) if last else record


def _small(records: Sequence[Record]) -> Sequence[Record]:
    """Number blocks anew whose ids are hashes or below zero: whoever goes on counts from them."""
    ends = [end for each in records for first, count in each.runs for end in (first, first + count)]
    if not ends or (min(ends) >= 0 and max(ends) <= LARGEST):
        return records
    numbers: dict[int, int] = {}
    return [
        msgspec.structs.replace(
            each, runs=shortened(numbers.setdefault(id, len(numbers)) for id in each.hash_ids)
        )
        for each in records
    ]


def told(bad: Sequence[Bad]) -> str:
    """Say which lines are bad, and why; the first ones by name."""
    said = [f"{each.where}: {each.why}" for each in bad[:SHOWN]]
    if len(bad) > SHOWN:
        said.append(f"and {len(bad) - SHOWN} more lines")
    return "\n".join(said)


def _files(paths: Sequence[str]) -> Iterator[Path]:
    for name in paths:
        path = Path(name)
        if path.is_dir():
            yield from sorted(each for each in path.iterdir() if each.is_file())
        else:
            yield path


def _one(path: Path, reading: Reading) -> _Found | None:
    """Read one file; None if there is nothing in it."""
    head, shows = _head(path, reading.columns)
    if not head:
        return None
    name = _format(path, head) if reading.format == "auto" else reading.format
    reader = cast("Reader", READERS[name])
    said = _SIZE.search(shows)
    size = reading.block_tokens or (int(said[1]) if said else 0) or reader.block_tokens
    records: list[Record] = []
    bad: list[Bad] = []
    for each in reader.read(Source(str(path), _lines(path), size, reading.columns)):
        if isinstance(each, Bad):
            bad.append(each)
        else:
            records.append(each)
    told = bool(said) or any(each.runs for each in records)
    return _Found(records, bad, size, told, '"hash_rle"' not in shows)


def _lines(path: Path) -> Iterator[str]:
    """Return the lines of a file, compressed or not.

    Raises:
        TraceError: it cannot be read; the message says where.
    """
    number = 0
    try:
        with _opened(path) as file:
            for number, line in enumerate(file, 1):
                yield line.decode("utf-8" if number > 1 else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}:{number}: it is no UTF-8: {error.reason}") from error
    except (OSError, EOFError, zlib.error) as error:
        raise TraceError(f"{path}: {error}") from error


def _opened(path: Path) -> IO[bytes]:
    with path.open("rb") as file:
        packed = file.read(len(GZIP)) == GZIP
    return cast("IO[bytes]", gzip.open(path)) if packed else path.open("rb")


def _head(path: Path, columns: Mapping[str, str]) -> tuple[str, str]:
    """Return the first line that is not blank, and the first that tells of blocks, if any does.

    Both have a format's own names of columns.
    """
    head = ""
    for line in _lines(path):
        head = head or line.strip()
        if head and _BLOCKS.search(said := _renamed(line, columns)):
            return _renamed(head, columns), said
    return _renamed(head, columns), ""


def _renamed(line: str, columns: Mapping[str, str]) -> str:
    """Return a line with a format's own names of columns."""
    if not line.lstrip().startswith(("{", '"')):
        return ",".join(columns.get(name.strip(), name.strip()) for name in line.split(","))
    for theirs, ours in columns.items():
        line = line.replace(f'"{theirs}"', f'"{ours}"')
    return line


def _format(path: Path, head: str) -> str:
    """Tell a file's format by its first line."""
    tells = (
        ("azure", "ContextTokens" in head),
        ("burstgpt", "Request tokens" in head),
        ("bailian", '"chat_id"' in head),
        ("weka", '"requests"' in head or '"hash_id_scope"' in head or path.suffix == ".json"),
        ("mooncake", '"timestamp"' in head and '"input_length"' in head),
        ("aiperf", '"delay"' in head and '"input_length"' in head),
        ("guidellm", "input_length" in head),
        ("log", log.is_it(head)),
    )
    for name, is_it in tells:
        if is_it:
            return name
    raise TraceError(
        f"{path}: its format cannot be told from its first line; name one of "
        f"{', '.join(READERS)}, and columns that have other names"
    )


def write_trace(trace: Trace, path: str, format: str) -> None:
    """Write ``trace`` to ``path`` in ``format``, one of `WRITERS`; compressed if it ends in .gz."""
    if format == "inference-perf":
        lines: Iterator[str] = iter([inference_perf.write(trace)])
    elif format == "aiperf":
        lines = aiperf.write(trace)
    else:
        lines = mooncake.write(trace, runs=format == "epp")
    out = Path(path)
    opened = gzip.open if out.suffix == ".gz" else open
    with opened(out, "wt", encoding="utf-8") as file:
        while some := list(islice(lines, 1000)):
            file.write("\n".join(some) + "\n")
