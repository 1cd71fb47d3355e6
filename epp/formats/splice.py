"""Replace the model's name inside a body and leave every other byte as it was; and back again.

msgspec hands out the value's JSON as a view into the body; its address less the body's is its
place. So no parser of ours looks for it, and of several "model" keys the one that an engine
would obey is found. What is found is compared with the body before it is cut.

An engine that was asked for another model names that one in its answer: ``"model":"target"``, once
in a document, or once in each event of a stream. Such a pair is found in the bytes, wherever pieces
of the answer are cut. It cannot stand inside a JSON string, where its quotes are escaped, but
it is found at any depth: events of the Responses API have it in an inner object.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

import msgspec
import numpy as np
from msgspec import Raw

from epp.formats.prompt import ABSENT
from epp.formats.reading import without_bom
from epp.model import InferenceRequest

UNWRITABLE = frozenset(
    {
        *("opaque", "multipart", "sglang", "vllm-grpc", "vllm-grpc-embed"),
        *("vertex-chat", "vertex-responses"),
    }
)
"""Formats whose body does not say its model in a JSON field that we may replace."""

_KEY = b'"model"'
_SPACE = b" \t\r\n"
MOST_SPACE = 8  #: bytes of white space on each side of the colon; with more it is not found


class _Model(msgspec.Struct, gc=False):
    model: Raw = ABSENT


_model = msgspec.json.Decoder(_Model).decode
_string = msgspec.json.Decoder(str).decode


def model_span(body: bytes) -> tuple[int, int] | None:
    """Return start and end of the model's JSON string, quotes included; None if it has none."""
    try:
        raw = _model(without_bom(body)).model
        _string(raw)
    except (msgspec.DecodeError, RecursionError):
        return None
    return span_in(body, raw)


def span_in(body: bytes, raw: Raw) -> tuple[int, int] | None:
    """Return start and end of ``raw`` in ``body``, of which it is a view; None if it is not."""
    start = _address(raw) - _address(body)
    end = start + memoryview(raw).nbytes
    if start < 0 or body[start:end] != bytes(raw):
        return None
    return start, end


def rewrite_model(request: InferenceRequest, target_model: str) -> InferenceRequest:
    """Return the request asking for ``target_model``, or as it is if its body cannot say so."""
    if not request.model or request.format in UNWRITABLE:
        return request
    span = request.model_span or model_span(request.body)
    if span is None:
        return request
    start, end = span
    written = msgspec.json.encode(target_model)
    return msgspec.structs.replace(
        request,
        body=b"".join((request.body[:start], written, request.body[end:])),
        target_model=target_model,
        model_span=(start, start + len(written)),
    )


def _address(buffer: bytes | Raw) -> int:
    return int(np.frombuffer(buffer, np.uint8).ctypes.data)


class RestoredName:
    """Replaces one model's name in an answer, piece by piece.

    At most a pair's length of bytes is held back, and only while they may be the beginning of one.
    4 us per event of a stream.

    Args:
        sent: the name that the engine was asked for.
        asked: the name that the client used.
    """

    def __init__(self, sent: str, asked: str) -> None:
        # Engines write a name as it is or with escapes.
        self._names = tuple(dict.fromkeys((msgspec.json.encode(sent), json.dumps(sent).encode())))
        names = b"|".join(re.escape(name) for name in self._names)
        space = rb"[ \t\r\n]{0,%d}" % MOST_SPACE
        self._pair = re.compile(rb'(?<!\\)("model"%s:%s)(?:%s)' % (space, space, names))
        self._asked = msgspec.json.encode(asked)
        self._longest = len(_KEY) + 2 * MOST_SPACE + 1 + max(map(len, self._names))
        self._held = b""
        self._last = b""  #: the byte before `_held`

    def feed(self, data: bytes, *, ends: bool) -> bytes:
        """Return what can go on of the answer so far; all of it, if it ``ends`` with ``data``."""
        data = self._last + self._held + data
        parts, at = [], len(self._last)
        for match in self._pair.finditer(data, at):
            parts += [data[at : match.end(1)], self._asked]
            at = match.end()
        end = len(data) if ends else self._unsure(data, at)
        parts.append(data[at:end])
        self._last, self._held = data[max(end - 1, 0) : end], data[end:]
        return b"".join(parts)

    def _unsure(self, data: bytes, start: int) -> int:
        """Where the first pair begins that ``data`` may have only the beginning of."""
        at = data.find(b'"', max(start, len(data) - self._longest + 1))
        while at >= 0:
            if self._may_begin(data[at:]):
                return at
            at = data.find(b'"', at + 1)
        return len(data)

    def _may_begin(self, text: bytes) -> bool:
        if len(text) <= len(_KEY):
            return _KEY.startswith(text)
        if not text.startswith(_KEY):
            return False
        rest = text[len(_KEY) :].lstrip(_SPACE)
        if not rest:
            return True
        if not rest.startswith(b":"):
            return False
        value = rest[1:].lstrip(_SPACE)
        return any(name.startswith(value) for name in self._names)


def restored_name(sent: str, asked: str, headers: Mapping[str, str]) -> RestoredName | None:
    """Return what restores the name in an answer with these headers; None if nothing can.

    Args:
        sent: the name that the engine was asked for; "" if that is the client's.
        asked: the name that the client used.
        headers: of the answer.
    """
    if not sent or sent == asked or not asked or headers.get("content-encoding"):
        return None
    kind = headers.get("content-type", "")
    if "json" not in kind and "event-stream" not in kind:
        return None
    return RestoredName(sent, asked)
