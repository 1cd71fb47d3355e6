"""An error as the HTTP answer that the client gets.

**Source:** OpenAI API error objects; llm-d-router's plain text (``inference error: ...``).
"""

from __future__ import annotations

from typing import Literal

import msgspec

from epp.errors import EppError
from epp.extproc.messages import Answer
from epp.headers import DROP_REASON, RETRY_AFTER

ErrorFormat = Literal["openai", "text"]

_GO_CODES = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    408: "RequestTimeout",
    412: "PreconditionFailed",
    413: "RequestEntityTooLarge",
    429: "ResourceExhausted",
    503: "ServiceUnavailable",
}


def answer(error: EppError, error_format: ErrorFormat = "openai") -> Answer:
    """Return the HTTP answer that says what ``error`` says."""
    # A message may name a header's value, whose bytes need not be UTF-8.
    message = str(error).encode("utf-8", "replace").decode()
    headers: dict[str, str] = {}
    if error_format == "text":
        headers["content-type"] = "text/plain"
        body = f"inference error: {_GO_CODES.get(error.status, 'Internal')} - {message}".encode()
    else:
        headers["content-type"] = "application/json"
        what = {"message": message, "type": error.kind, "param": None, "code": error.status}
        body = msgspec.json.encode({"error": what})
    if error.reason:
        headers[DROP_REASON] = error.reason
    if error.retry_after is not None:
        headers[RETRY_AFTER] = str(error.retry_after)
    return Answer(error.status, headers, body)
