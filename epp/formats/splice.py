"""Replace the model's name inside a body and leave every other byte as it was.

msgspec hands out the value's JSON as a view into the body; its address less the body's is its
place. So no parser of ours looks for it, and of several "model" keys the one that an engine
would obey is found. What is found is compared with the body before it is cut.
"""

from __future__ import annotations

import msgspec
import numpy as np
from msgspec import Raw

from epp.formats.prompt import ABSENT
from epp.formats.reading import without_bom
from epp.model import InferenceRequest

UNWRITABLE = frozenset({"opaque", "multipart", "sglang"})
"""Formats whose body does not say its model in a JSON field that we may replace."""


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
    start = _address(raw) - _address(body)
    end = start + memoryview(raw).nbytes
    if start < 0 or body[start:end] != bytes(raw):
        return None
    return start, end


def rewrite_model(request: InferenceRequest, target_model: str) -> InferenceRequest:
    """Return the request asking for ``target_model``, or as it is if its body cannot say so."""
    if not request.model or request.format in UNWRITABLE:
        return request
    span = model_span(request.body)
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
