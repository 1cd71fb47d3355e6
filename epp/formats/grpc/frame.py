"""A gRPC request's first frame, and a parser of the message in it.

A frame is one byte that says whether the message is compressed, four bytes of length, big end
first, and the message. Compressed messages are not read: the request is routed by load, and why is
said. No gRPC body is refused for its form.

**Source:** gRPC over HTTP/2, "Length-Prefixed-Message".
"""

from __future__ import annotations

from typing import ClassVar

from google.protobuf.message import DecodeError

from epp.formats.prompt import Unreadable
from epp.formats.reading import (
    H2C,
    MAX_JSON_BYTES,
    Decode,
    PathParser,
    content_type,
    opaque,
    understood,
)
from epp.model import Arrival, InferenceRequest

HEAD_BYTES = 5
MAX_BYTES = MAX_JSON_BYTES
_KINDS = frozenset({"", "application/grpc", "application/grpc+proto"})


class GrpcParser(PathParser):
    """A parser of requests that are one protobuf message in a gRPC frame."""

    protocols: ClassVar[tuple[str, ...]] = (H2C,)

    def read(
        self, arrival: Arrival, path: str, now: float, format: str, decode: Decode
    ) -> InferenceRequest:
        """Read the message with ``decode``, which may raise `Unreadable` or a `DecodeError`."""
        try:
            facts = decode(message_in(arrival))
        except Unreadable as error:
            return opaque(arrival, path, now, str(error), format=format)
        except DecodeError:
            return opaque(arrival, path, now, "bad-shape", format=format)
        return understood(arrival, path, now, format, facts)


def message_in(arrival: Arrival) -> bytes:
    """Return the message of the body's first frame.

    Raises:
        Unreadable: there is none that can be read.
    """
    body = arrival.body
    if not body or len(body) > MAX_BYTES:
        raise Unreadable("hidden" if arrival.body_hidden else "too-large" if body else "empty")
    if content_type(arrival.headers)[0] not in _KINDS:
        raise Unreadable("content-type")
    end = HEAD_BYTES + int.from_bytes(body[1:HEAD_BYTES], "big")
    if len(body) < HEAD_BYTES or end > len(body) or body[0] > 1:
        raise Unreadable("bad-shape")
    if body[0]:
        raise Unreadable("encoded")
    return body[HEAD_BYTES:end]
