"""BurstGPT: CSV of arrival times and lengths; later releases tell conversations and durations.

A failed request has no response tokens; it stays in the trace.

**Source:** HPMLL/BurstGPT: ``Timestamp`` in seconds, ``Session ID``, ``Elapsed time`` in seconds,
``Model``, ``Request tokens``, ``Response tokens``, ``Total tokens``, ``Log Type``.
"""

from __future__ import annotations

from epp.recording.record import MOONCAKE_BLOCK, Record
from epp.traffic.formats.reading import Found, Row, Source, from_line, table

block_tokens = MOONCAKE_BLOCK


def read(source: Source) -> Found:
    """See `reading.Reader.read`."""
    return table(source, _record)


def _record(row: Row) -> Record:
    elapsed = row.get("Elapsed time", "")
    return from_line(
        {
            "timestamp": float(row["Timestamp"]) * 1000,
            "input_length": row["Request tokens"],
            "output_length": row["Response tokens"],
            "session_id": row.get("Session ID", ""),
            "class": row.get("Log Type", ""),
            "e2e_ms": float(elapsed) * 1000 if elapsed else None,
            "outcome": "failed" if float(row["Response tokens"]) == 0 else "",
        }
    )
