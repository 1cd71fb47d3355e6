"""BurstGPT: CSV of arrival times and lengths; later releases tell conversations and durations.

A failed request has no response tokens; it stays in the trace.

**Source:** HPMLL/BurstGPT: ``Timestamp`` in seconds, ``Session ID``, ``Elapsed time`` in seconds,
``Model``, ``Request tokens``, ``Response tokens``, ``Total tokens``, ``Log Type``.
"""

from __future__ import annotations

from epp.recording.record import MOONCAKE_BLOCK, Record
from epp.traffic.formats.reading import Found, Row, Source, from_line, number, table, whole

block_tokens = MOONCAKE_BLOCK


def read(source: Source) -> Found:
    """See `reading.Reader.read`."""
    return table(source, _record)


def _record(row: Row) -> Record:
    answer = whole(row, "Response tokens")
    return from_line(
        {
            "timestamp": number(row, "Timestamp") * 1000,
            "input_length": whole(row, "Request tokens"),
            "output_length": answer,
            "session_id": row.get("Session ID", ""),
            "class": row.get("Log Type", ""),
            "e2e_ms": number(row, "Elapsed time") * 1000 if row.get("Elapsed time") else None,
            "outcome": "" if answer else "failed",
        }
    )
