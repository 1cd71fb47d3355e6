"""An entry of an access log as a message, and back. Pure.

What is read is within what `feedback.access_log` lets through, whoever wrote it.

Hot path where a gateway's log comes to another picker than its requests: an entry each.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from epp.feedback.entry import Entry
from epp.formats.usage import MOST
from epp.model import Outcome, Usage
from epp.peers.news import Logged
from epp.peers.v1 import peers_pb2 as pb

MORE_BYTES = 60  #: than other events take, about, without names
LONGEST_NAME = 127  #: characters of an exchange's name
_TOLD = {
    Outcome.UNKNOWN: pb.Logged.UNKNOWN,
    Outcome.COMPLETED: pb.Logged.COMPLETED,
    Outcome.FAILED: pb.Logged.FAILED,
    Outcome.ABANDONED: pb.Logged.ABANDONED,
}
_OUTCOMES = {told: outcome for outcome, told in _TOLD.items()}


def write(made: pb.Logged, logged: Logged, name: Callable[[str], int]) -> None:
    """Fill a message in; ``name`` finds the place of a text in the news' names."""
    entry = logged.entry
    if logged.request is not None:
        made.request = logged.request
    made.exchange = entry.name
    made.outcome = _TOLD[entry.outcome]
    made.streamed = entry.streamed
    if entry.status is not None:
        made.status = entry.status
    if entry.served:
        made.served = name(entry.served)
    if entry.response_bytes is not None:
        made.response_bytes = entry.response_bytes
    if entry.usage is not None:
        _write_usage(made, entry.usage)
    if entry.first_byte_seconds is not None:
        made.first_seconds = entry.first_byte_seconds
    if entry.seconds is not None:
        made.seconds = entry.seconds
    if entry.attempts is not None:
        made.attempts = entry.attempts
    if entry.flags:
        made.flags = name(entry.flags)


def read(logged: pb.Logged, name: Callable[[int], str]) -> Logged:
    """Return what is told; ``name`` finds a text by its place in the news' names.

    Raises:
        ValueError: it cannot be.
    """
    has, exchange = logged.HasField, logged.exchange
    request = logged.request if has("request") else None
    if (request is None) is not bool(exchange):
        raise ValueError("an entry of no exchange, or of two")
    if len(exchange) > LONGEST_NAME or not exchange.isascii():
        raise ValueError("an entry of an exchange that nobody named")
    entry = Entry(
        request_id="",
        name=exchange,
        outcome=_OUTCOMES.get(logged.outcome, Outcome.UNKNOWN),
        status=logged.status or None,
        served=name(logged.served) if has("served") else "",
        response_bytes=logged.response_bytes if has("response_bytes") else None,
        usage=_usage(logged),
        first_byte_seconds=_seconds(logged.first_seconds) if has("first_seconds") else None,
        seconds=_seconds(logged.seconds) if has("seconds") else None,
        streamed=logged.streamed,
        attempts=logged.attempts or None,
        flags=name(logged.flags) if has("flags") else "",
    )
    return Logged(entry, request)


def _write_usage(made: pb.Logged, usage: Usage) -> None:
    if usage.prompt_tokens is not None:
        made.prompt_tokens = usage.prompt_tokens
    if usage.completion_tokens is not None:
        made.completion_tokens = usage.completion_tokens
    if usage.cached_tokens is not None:
        made.cached_tokens = usage.cached_tokens


def _usage(logged: pb.Logged) -> Usage | None:
    has = logged.HasField
    prompt = logged.prompt_tokens if has("prompt_tokens") else None
    completion = logged.completion_tokens if has("completion_tokens") else None
    cached = logged.cached_tokens if has("cached_tokens") else None
    if prompt is None and completion is None and cached is None:
        return None
    if max(prompt or 0, completion or 0, cached or 0) >= MOST:
        raise ValueError("counts that are nobody's")
    return Usage(prompt, completion, cached)


def _seconds(told: float) -> float:
    if not (math.isfinite(told) and told >= 0):
        raise ValueError(f"{told} is no duration")
    return told
