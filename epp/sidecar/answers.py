"""The sidecar's own answers, in the shape of vLLM's errors; pure.

**Source:** answers of llm-d's sidecar.
"""

from __future__ import annotations

import msgspec

_KINDS = {
    400: "BadRequestError",
    403: "ForbiddenError",
    408: "RequestTimeoutError",
    413: "PayloadTooLargeError",
    502: "BadGateway",
    503: "ServiceUnavailable",
    504: "GatewayTimeout",
}

FORBIDDEN = b"Forbidden: prefill target not allowed by SSRF protection"
NOT_READY = "The decode node is not ready. Please check that the vLLM service is running."
RETRY_SECONDS = "1"  #: a hint for clients that meet a busy or a starting engine


def error(status: int, message: str) -> bytes:
    """Return an error's JSON."""
    told = {
        "object": "error",
        "message": message,
        "type": _KINDS.get(status, "InternalServerError"),
        "param": "",
        "code": status,
    }
    return msgspec.json.encode(told)
