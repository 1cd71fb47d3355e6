"""Requests as they arrive, and real ones with their answers, recorded from vLLM 0.32."""

from __future__ import annotations

import io
import json
from http.client import HTTPResponse
from pathlib import Path

from epp.formats import FormatSet
from epp.model import Arrival, InferenceRequest

SAMPLES = Path(__file__).parent.parent / "data" / "http"
FORMATS = FormatSet()


def post(
    path: str,
    body: object = b"",
    *,
    content_type: str | None = "application/json",
    headers: dict[str, str] | None = None,
) -> Arrival:
    """A POST; ``body`` is sent as it is if it is bytes and as JSON otherwise."""
    sent = {":method": "POST", ":path": path, **(headers or {})}
    if content_type is not None:
        sent["content-type"] = content_type
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Arrival("r-1", sent, raw)


def parsed(path: str, body: object = b"", **options: object) -> InferenceRequest:
    """What the default formats make of it."""
    return FORMATS.parse(post(path, body, **options), 7.0)  # type: ignore[arg-type]


def sample_request(name: str) -> Arrival:
    """A recorded request."""
    request = json.loads((SAMPLES / f"{name}.req.json").read_bytes())
    headers = {key.lower(): value for key, value in request["headers"].items()}
    return post(request["path"], request["body"], headers=headers)


def sample_answer(name: str) -> bytes:
    """The body of a recorded answer, without its HTTP framing."""
    response = HTTPResponse(_Recorded((SAMPLES / f"{name}.bin").read_bytes()))  # type: ignore[arg-type]
    response.begin()
    return response.read()


class _Recorded:
    """As much of a socket as `http.client` needs."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, mode: str) -> io.BytesIO:
        return io.BytesIO(self._data)
