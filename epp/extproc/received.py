"""Messages of the smaller gRPC services, decoded where a wrong one can be answered.

A deserialiser that gRPC calls may not refuse: it logs a traceback for each message that is none,
and anybody who reaches the port could fill the log.
"""

from __future__ import annotations

from typing import Any

import grpc
from google.protobuf.message import DecodeError


async def decoded(kind: Any, data: bytes, context: Any) -> Any:
    """Return ``data`` as a message of ``kind``; end the call with INVALID_ARGUMENT if it is none."""
    try:
        return kind.FromString(data)
    except DecodeError:
        name = kind.DESCRIPTOR.full_name
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"this is no {name}")
