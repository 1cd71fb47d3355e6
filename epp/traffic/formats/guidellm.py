"""guidellm's traces: JSON lines or CSV of timestamps in seconds and lengths.

**Source:** guidellm's ``trace_synthetic`` and ``mooncake`` data: columns ``timestamp``,
``input_length``, ``output_length``, ``duration``, ``conversation_id``, all of them renameable, and
``hash_ids`` of 512 tokens.
"""

from __future__ import annotations

from epp.recording.record import MOONCAKE_BLOCK, Record
from epp.traffic.formats.reading import Found, Row, Source, from_line, objects, table

block_tokens = MOONCAKE_BLOCK


def read(source: Source) -> Found:
    """See `reading.Reader.read`."""
    lines = list(source.lines)
    source = Source(source.name, lines, source.block_tokens, source.columns)
    if lines and not lines[0].lstrip().startswith("{"):
        return table(source, _record)
    return objects(source, _record)


def _record(row: Row) -> Record:
    duration = row.get("duration")
    return from_line(
        {
            "timestamp": float(row["timestamp"]) * 1000,
            "input_length": row["input_length"],
            "output_length": row["output_length"],
            "hash_ids": row.get("hash_ids") or (),
            "block_size": row.get("block_size", block_tokens),
            "session_id": row.get("conversation_id", row.get("conversation id", "")),
            "e2e_ms": None if duration in (None, "") else float(str(duration)) * 1000,
        }
    )
