"""Mooncake's traces, which are ours too: JSON lines, with our fields beside Mooncake's own."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from epp.recording.record import MOONCAKE_BLOCK, Record, line_of
from epp.traffic.formats.reading import Found, Row, Source, delayed, from_line, objects
from epp.traffic.trace import Trace

block_tokens = MOONCAKE_BLOCK


def read(source: Source) -> Found:
    """See `reading.Reader.read`. Later turns may tell a delay, as `aiperf` lets them."""
    timed = delayed()

    def record(row: Row) -> Record:
        if "hash_ids" in row and "hash_rle" in row:
            raise ValueError("hash_ids and hash_rle exclude each other")
        return from_line(timed(row))

    return objects(source, record)


def write(trace: Trace, *, runs: bool = False) -> Iterator[str]:
    """Return the lines; ``runs`` writes ``hash_rle``, which only `epp` reads, but is short."""
    for record in trace.records:
        yield msgspec.json.encode(line_of(record, trace.block_tokens, runs=runs)).decode()
