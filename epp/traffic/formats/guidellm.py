"""guidellm's traces: JSON lines or CSV of timestamps in seconds and lengths.

**Source:** guidellm's ``trace_synthetic`` and ``mooncake`` data: columns ``timestamp``,
``input_length``, ``output_length``, ``duration``, ``conversation_id``, all of them renameable, and
``hash_ids`` of 512 tokens.
"""

from __future__ import annotations

from epp.recording.record import MOONCAKE_BLOCK, Record
from epp.traffic.formats.reading import Found, Row, Source, from_line, number, objects, table, whole

block_tokens = MOONCAKE_BLOCK


def read(source: Source) -> Found:
    """See `reading.Reader.read`."""
    lines = list(source.lines)
    source = Source(source.name, lines, source.block_tokens, source.columns)
    first = next((line for line in lines if line.strip()), "{").lstrip()
    return objects(source, _record) if first.startswith(("{", "[")) else table(source, _record)


def _record(row: Row) -> Record:
    untold = row.get("duration") in (None, "")
    return from_line(
        {
            "timestamp": number(row, "timestamp") * 1000,
            "input_length": whole(row, "input_length"),
            "output_length": whole(row, "output_length"),
            "hash_ids": row.get("hash_ids") or (),
            "block_size": row.get("block_size", block_tokens),
            "session_id": row.get("conversation_id", row.get("conversation id", "")),
            "e2e_ms": None if untold else number(row, "duration") * 1000,
        }
    )
