"""Ask an engine for token usage on behalf of a client that did not, and take it out of the answer.

An engine tells the usage of a stream only if ``stream_options.include_usage`` asks for it: then in
one more event, the last one before ``[DONE]``, without choices. Many clients read ``choices[0]`` of
every event, so one that did not ask must not see that event.

The request is not written anew: the field is put before the object's last brace, or in the place
of options that say nothing. A request is left alone that has other options, or asks for more than
one choice, since its answer could not be given back byte for byte; and one that is very large.

What an engine writes differently because it was asked, and what becomes of it:

* the usage event is removed, and with it what engines put only there;
* vLLM says ``system_fingerprint`` in the usage event instead of the event that finishes the choice:
  it is put back. For that the finishing event waits for the next one, which comes at once;
* ``"usage":null`` in every event stays: vLLM does not write it, SGLang does so unasked, and only of
  engines that do so when asked (vLLM before 0.6.2) would the answer differ.

**Source:** OpenAI's API reference, ``stream_options``; streams captured from a vLLM 0.32 server.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec
from msgspec import Raw

from epp.formats.prompt import ABSENT
from epp.formats.reading import Scalar, without_bom
from epp.formats.splice import span_in
from epp.model import InferenceRequest

ASKS = b'{"include_usage":true}'
FORMATS = frozenset({"chat", "completions"})
MOST_BYTES = 2 * 1024 * 1024  #: of a request; to look through as much takes 3 ms at worst
MOST_HELD = 64 * 1024  #: bytes of an unfinished event; a longer one is no usage, and goes on

_FIELD = b',"stream_options":'
_SPACE = b" \t\r\n"
_MANY = re.compile(rb'\[\s*["\[]')  #: how a list of prompts begins
#: An empty line. A CR may be half of a line's end, so a last one is not yet taken for a whole.
_BLANK = re.compile(rb"(?:\r\n|\n|\r(?!\n))(?:\r\n|\n|\r(?!\n|\Z))")
_LONGEST_BLANK = len(b"\r\n\r\n")
#: Names of a JSON object; inside its strings the quotes would be escaped.
_USAGE = re.compile(rb'"usage"\s*:\s*\{')
_FINISH = re.compile(rb'"finish_reason"\s*:\s*"')
_FINGERPRINT = b'"system_fingerprint":'


class _Asked(msgspec.Struct, gc=False):
    stream_options: Raw = ABSENT
    prompt: Raw = ABSENT
    n: Scalar = None


class _Options(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    include_usage: bool | None = None


class _Event(msgspec.Struct, gc=False):
    choices: list[Raw]
    usage: dict[str, Raw]
    system_fingerprint: Raw = ABSENT


_asked = msgspec.json.Decoder(_Asked).decode
_options = msgspec.json.Decoder(_Options | None).decode
_event = msgspec.json.Decoder(_Event).decode


def asking_usage(request: InferenceRequest) -> bytes | None:
    """Return the body that asks for usage too; None if the request's own is to be sent."""
    body = request.body
    if not request.streaming or request.format not in FORMATS or len(body) > MOST_BYTES:
        return None
    try:
        asked = _asked(without_bom(body))
        if asked.n not in (None, 1) or _MANY.match(asked.prompt):
            return None
        if asked.stream_options is ABSENT:
            end = len(body.rstrip(_SPACE)) - 1
            return b"".join((body[:end], _FIELD, ASKS, body[end:]))
        options = _options(asked.stream_options)
    except (msgspec.DecodeError, RecursionError):
        return None
    span = span_in(body, asked.stream_options)
    if span is None or (options is not None and options.include_usage):
        return None
    return b"".join((body[: span[0]], ASKS, body[span[1] :]))


class WithoutUsage:
    """Takes the usage event out of an event stream, piece by piece.

    Held back is an event that has not ended, of at most `MOST_HELD` bytes, and a whole one only if
    it finishes the choice. Where a connection breaks there, what was held is lost with the rest.

    1 us per event of a stream, 8 us if it comes in two pieces.
    """

    def __init__(self) -> None:
        self._rest = b""  #: an event that has not ended
        self._finish = b""  #: the event that finishes the choice
        self._passing = False  #: within an event that is too long to be held

    def feed(self, data: bytes, *, ends: bool) -> bytes:
        """Return what can go on of the answer so far; all of it, if it ``ends`` with ``data``."""
        holds = self._rest or self._finish or self._passing
        tells = _USAGE.search(data) or _FINISH.search(data)
        if not (holds or tells) and data.endswith(b"\n\n"):
            return data
        searched = max(0, len(self._rest) - _LONGEST_BLANK + 1)
        data = self._rest + data
        parts: list[bytes] = []
        at = 0
        for blank in _BLANK.finditer(data, searched):
            parts += self._after(data[at : blank.end()])
            at = blank.end()
        rest, self._rest = data[at:], b""
        if ends:
            parts += self._after(rest)
            parts.append(self._finish)
        elif self._passing or len(rest) > MOST_HELD:
            parts += self._too_long(rest)
        else:
            self._rest = rest
        return b"".join(parts)

    def _after(self, event: bytes) -> tuple[bytes, ...]:
        """What goes on once ``event`` is whole."""
        if self._passing:
            self._passing = False
            return (event,)
        finish, self._finish = self._finish, b""
        usage = _usage_in(event)
        if usage is not None:
            return (_stamped(finish, usage.system_fingerprint),)
        if _FINISH.search(event) and _FINGERPRINT not in event:
            self._finish = event
            return (finish,)
        return finish, event

    def _too_long(self, rest: bytes) -> tuple[bytes, ...]:
        """What goes on of an event that is not waited for."""
        finish, self._finish = self._finish, b""
        # The blank line may be cut in two: what it may begin with waits.
        end = len(rest.rstrip(b"\r\n"))
        self._rest, self._passing = rest[end:], True
        return finish, rest[:end]


def without_usage(headers: Mapping[str, str]) -> WithoutUsage | None:
    """Return what takes the usage out of an answer with these headers; None if none is in it."""
    if headers.get("content-encoding") or "event-stream" not in headers.get("content-type", ""):
        return None
    return WithoutUsage()


def _usage_in(event: bytes) -> _Event | None:
    """Return the event if it tells usage and nothing else."""
    if not _USAGE.search(event):
        return None
    lines = (line[5:] for line in event.splitlines() if line.startswith(b"data:"))
    try:
        found = _event(b"\n".join(lines))
    except (msgspec.DecodeError, RecursionError):
        return None
    return None if found.choices else found


def _stamped(event: bytes, fingerprint: Raw) -> bytes:
    """Return the event that finishes the choice with the fingerprint that the usage event had."""
    value, end = bytes(fingerprint), len(event.rstrip(_SPACE)) - 1
    if not value.startswith(b'"') or event[end : end + 1] != b"}":
        return event
    return b"".join((event[:end], b",", _FINGERPRINT, value, event[end:]))
