"""Form uploads, such as audio to transcribe: only the ``model`` field is read.

The standard library's MIME parser sees the first and, if the field is not among them, the last
`WINDOW_BYTES` of the body, so an upload of any size costs the same. What stands before the first
boundary of a window is preamble to the parser, which skips it. The body is never rewritten.

**Source:** RFC 7578 (multipart/form-data).
"""

from __future__ import annotations

from email.message import Message
from email.parser import BytesParser

from epp.formats.reading import opaque
from epp.model import Arrival, InferenceRequest

WINDOW_BYTES = 16 * 1024
MAX_NAME_BYTES = 1024


def is_multipart(arrival: Arrival) -> bool:
    """Whether the body is a form upload."""
    return arrival.headers.get("content-type", "")[:19].lower() == "multipart/form-data"


def parse(arrival: Arrival, path: str, now: float) -> InferenceRequest:
    """Return the request with its model, if the form names one near its start or end."""
    body = arrival.body
    if not body:
        word = "hidden" if arrival.body_hidden else "empty"
        return opaque(arrival, path, now, word, format="multipart")
    if arrival.headers.get("content-encoding", "").strip().lower() not in {"", "identity"}:
        return opaque(arrival, path, now, "encoded", format="multipart")
    kind = arrival.headers["content-type"]
    model = _model(kind, body[:WINDOW_BYTES], whole=len(body) <= WINDOW_BYTES)
    if not model and len(body) > WINDOW_BYTES:
        model = _model(kind, body[-WINDOW_BYTES:], whole=True)
    word = "" if model else "no-model"
    return opaque(arrival, path, now, word, format="multipart", model=model)


def _model(content_type: str, window: bytes, *, whole: bool) -> str:
    """Return the form's model; the last part of a window counts only if it is ``whole``."""
    try:
        header = f"Content-Type: {' '.join(content_type.split())}\r\n\r\n".encode("latin-1")
        parts = BytesParser().parsebytes(header + window).get_payload()
        if not isinstance(parts, list):
            return ""
        for part in parts if whole else parts[:-1]:
            if isinstance(part, Message) and _field(part) == "model":
                return _text(part)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        pass  # a header that the MIME parser trips over: the form is routed unread
    return ""


def _field(part: Message) -> object:
    return part.get_param("name", header="content-disposition")


def _text(part: Message) -> str:
    value = part.get_payload(decode=True)
    if not isinstance(value, bytes) or len(value) > MAX_NAME_BYTES:
        return ""
    return value.decode("utf-8").strip()
