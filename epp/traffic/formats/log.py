"""Logs of requests: JSON lines or CSV of what a load generator or an engine wrote of each request.

Columns: ``arrival``, ``input_tokens``, ``output_tokens``; if they are known ``ttft``, ``e2e``,
``cached_tokens``, ``class``, ``session`` and ``outcome``. Times end in ``_s`` or ``_ms``. Instead
of ``ttft`` and ``e2e`` there may be ``first_token`` and ``last_token``: moments on the clock of
``arrival``.

**Source:** vLLM's names are known, too: those of its ``RequestStateStats`` (``queued_ts``,
``first_token_ts``, ``last_token_ts``: seconds of one clock), and ``input_toks`` and ``output_toks``
of LLMServingSim's logs, which have them. ``arrival_time`` beside them is on another clock.
"""

from __future__ import annotations

import msgspec

from epp.recording.record import Record
from epp.traffic.formats.reading import Found, Row, Source, from_line, number, objects, table, whole

block_tokens = 16  #: vLLM's; a log names no blocks

NAMES = {
    "input_toks": "input_tokens",
    "output_toks": "output_tokens",
    "queued_ts": "arrival_s",
    "first_token_ts": "first_token_s",
    "last_token_ts": "last_token_s",
}
UNITS = {"_s": 1000.0, "_ms": 1.0}  #: in milliseconds
LEAST_MS = -1e-3  #: differences of moments may be below zero by rounding


def is_it(head: str) -> bool:
    """Tell a log by its first line."""
    has_lengths = "input_tokens" in head or "input_toks" in head
    return has_lengths and any(name in head for name in ("arrival_s", "arrival_ms", "queued_ts"))


def read(source: Source) -> Found:
    """See `reading.Reader.read`."""
    lines = list(source.lines)
    names = {**NAMES, **source.columns}
    source = Source(source.name, lines, source.block_tokens, names)
    first = next((line for line in lines if line.strip()), "{")
    return objects(source, _record) if first.lstrip().startswith("{") else table(source, _record)


def _record(row: Row) -> Record:
    arrival = _time(row, "arrival")
    if arrival is None:
        raise KeyError("arrival_s")
    ttft = _since(row, arrival, "ttft", "first_token")
    duration = _since(row, arrival, "e2e", "last_token")
    if ttft is not None and duration is not None and duration < ttft + LEAST_MS:
        raise ValueError(f"its answer ends after {duration:g} ms, before its first token: {ttft:g}")
    input_tokens = whole(row, "input_tokens")
    cached = whole(row, "cached_tokens") if _told(row, "cached_tokens") else None
    if cached is not None and cached > input_tokens:
        raise ValueError(f"cached_tokens is {cached}, of {input_tokens} input tokens")
    found = from_line(
        {
            "timestamp": arrival,
            "input_length": input_tokens,
            "output_length": whole(row, "output_tokens"),
            "ttft_ms": ttft,
            "e2e_ms": duration,
            "cached_tokens": cached,
            "class": str(row["class"]) if _told(row, "class") else "",
            "session_id": str(row["session"]) if _told(row, "session") else "",
            "outcome": str(row["outcome"]) if _told(row, "outcome") else "",
        }
    )
    return msgspec.structs.replace(found, outcome="" if found.outcome == "ok" else found.outcome)


def _told(row: Row, name: str) -> bool:
    return row.get(name) not in (None, "")


def _time(row: Row, name: str) -> float | None:
    """Return milliseconds, whatever the unit; None if nothing is told."""
    told = [(name + unit, times) for unit, times in UNITS.items() if _told(row, name + unit)]
    if len(told) > 1:
        raise ValueError(f"there are both {told[0][0]} and {told[1][0]}")
    return number(row, told[0][0]) * told[0][1] if told else None


def _since(row: Row, arrival: float, name: str, moment: str) -> float | None:
    """Return milliseconds from the arrival: told, or the difference of two moments."""
    told = _time(row, name)
    if told is not None:
        return told
    at = _time(row, moment)
    if at is None:
        return None
    if at < arrival + LEAST_MS:
        raise ValueError(f"its {moment} was {arrival - at:g} ms before its arrival: another clock?")
    return max(at - arrival, 0.0)
