"""Azure's LLM inference traces: CSV of arrival times and lengths, without prefixes.

**Source:** AzurePublicDataset, AzureLLMInferenceDataset2023 and 2024: ``TIMESTAMP`` (with seven
digits of a second; 2024 adds ``+00:00``), ``ContextTokens``, ``GeneratedTokens``.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

from epp.recording.record import MOONCAKE_BLOCK, Record
from epp.traffic.formats.reading import Found, Row, Source, from_line, table, whole

block_tokens = MOONCAKE_BLOCK

_STAMP = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(\.\d+)?(Z|[+-]\d\d:\d\d)?")


def read(source: Source) -> Found:
    """See `reading.Reader.read`."""
    return table(source, _record)


def _record(row: Row) -> Record:
    return from_line(
        {
            "timestamp": _seconds(row["TIMESTAMP"]) * 1000,
            "input_length": whole(row, "ContextTokens"),
            "output_length": whole(row, "GeneratedTokens"),
        }
    )


def _seconds(stamp: str) -> float:
    """Read a moment, as seconds since 1970."""
    found = _STAMP.fullmatch(stamp.strip())
    if found is None:
        raise ValueError(f"TIMESTAMP {stamp!r} is no moment such as 2023-11-16 18:15:46.6805900")
    moment = datetime.fromisoformat(found[1] + (found[3] or "+00:00").replace("Z", "+00:00"))
    return moment.astimezone(UTC).timestamp() + float(found[2] or 0)
