"""aiperf's ``mooncake_trace``: Mooncake's lines, where later turns may tell a delay instead.

A line that carries text, messages or a whole payload is refused: a trace here has no content.

**Source:** aiperf's trace replay: ``timestamp`` or ``delay`` in milliseconds, ``input_length``,
``output_length``, ``hash_ids``, ``session_id``; a first turn has a timestamp, and a later one of
the same session is sent ``delay`` after the answer before it.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from epp.recording.record import MOONCAKE_BLOCK, Record
from epp.traffic.formats.reading import Found, Row, Source, delayed, from_line, objects
from epp.traffic.trace import Trace

block_tokens = MOONCAKE_BLOCK

CONTENT = ("text_input", "messages", "payload", "tools")


class Turn(msgspec.Struct, omit_defaults=True, kw_only=True):
    """A line as aiperf reads it."""

    timestamp: float | None = None
    delay: float | None = None
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...] = ()
    session_id: str = ""


def read(source: Source) -> Found:
    """See `reading.Reader.read`. A turn without a timestamp arrives its delay after the last."""
    timed = delayed()

    def record(row: Row) -> Record:
        if found := [name for name in CONTENT if name in row]:
            raise ValueError(f"it carries {found[0]}; only lengths and block ids are read")
        return from_line(timed(row))

    return objects(source, record)


def write(trace: Trace) -> Iterator[str]:
    """Return the lines. A later turn of a session tells its think time, if that is known."""
    seen: set[str] = set()
    for record in trace.records:
        later = record.session in seen and record.think is not None
        if record.session:
            seen.add(record.session)
        turn = Turn(
            timestamp=None if later else round(record.at * 1000, 3),
            delay=round((record.think or 0.0) * 1000, 3) if later else None,
            input_length=record.input_tokens,
            output_length=record.output_tokens,
            hash_ids=record.hash_ids,
            session_id=record.session,
        )
        yield msgspec.json.encode(turn).decode()


def command(trace: Trace, path: str) -> str:
    """Return the command line that replays the file ``path`` as the trace is."""
    return (
        f"aiperf profile --input-file {path} --custom-dataset-type mooncake_trace "
        f"--prompt-input-tokens-block-size {trace.block_tokens} --fixed-schedule "
        "--fixed-schedule-auto-offset --endpoint-type chat --streaming --model MODEL --url URL"
    )
