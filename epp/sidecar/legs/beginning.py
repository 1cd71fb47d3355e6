"""How a stream of events begins: with a token, or with the engine's failure; pure.

An engine that cannot fetch a prompt's cache has often said 200 and opened its stream by then. So
what opens a stream is held back until it is known what follows.

**Source:** streams of vLLM 0.32 whose NIXL transfer failed: completions begin with ``data:
{"error"``; chat has the role before it; messages have ``message_start`` and ``event: error``;
responses have two events and then break off.
"""

from __future__ import annotations

from enum import Enum

MOST_BYTES = 65_536  #: held back; a stream that has said so much is a good one

_FAILURES = (b'data: {"error"', b"event: error")
_OPENINGS = (
    b":",
    b"event: ping",
    b"event: message_start",
    b"event: response.created",
    b"event: response.in_progress",
)
_ROLE = b'"delta":{"role":"assistant","content":""}'


class Beginning(Enum):
    """What the first bytes of a stream say."""

    OPEN = "open"  #: nothing yet
    GOOD = "good"
    FAILED = "failed"


def begins(stream: bytes) -> Beginning:
    """Judge a stream by its first bytes; an event that is not whole says nothing."""
    if len(stream) > MOST_BYTES:
        return Beginning.GOOD
    *events, _ = stream.split(b"\n\n")
    for event in events:
        if event.startswith(_FAILURES):
            return Beginning.FAILED
        if not event.startswith(_OPENINGS) and _ROLE not in event:
            return Beginning.GOOD
    return Beginning.OPEN
