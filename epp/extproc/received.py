"""Messages of the smaller gRPC services, decoded where a wrong one can be answered."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import DecodeError

from epp.rpc.call import Call, EndOfMessages
from epp.rpc.status import Code


async def decoded(kind: Any, data: bytes | EndOfMessages, call: Call) -> Any:
    """Return ``data`` as a message of ``kind``; end the call with INVALID_ARGUMENT if it is none."""
    try:
        return kind.FromString(data)
    except (DecodeError, TypeError):  # of no message at all
        name = kind.DESCRIPTOR.full_name
        await call.abort(Code.INVALID_ARGUMENT, f"this is no {name}")
