"""HTTP/2 frames, as far as gRPC uses them. Pure.

**Source:** RFC 9113, 4 to 7.
"""

from __future__ import annotations

import struct
from enum import IntEnum

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"  #: a client's first bytes
HEAD = struct.Struct(">HBBBL")  #: length (two parts), kind, flags, stream
MOST_PAYLOAD = 16_384  #: bytes of a frame that we take, and that anybody takes
MOST_WINDOW = 2**31 - 1
FIRST_WINDOW = 65_535  #: of a connection, and of streams unless told otherwise

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS = 0, 1, 2, 3, 4
PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 5, 6, 7, 8, 9

END_STREAM = ACK = 0x01
END_HEADERS = 0x04
PADDED = 0x08
WITH_PRIORITY = 0x20

ENABLE_PUSH = 2  #: of settings, as the next
MAX_CONCURRENT_STREAMS = 3
INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE, MAX_HEADER_LIST_SIZE = 4, 5, 6
HAVE_BLOCKS = frozenset({HEADERS, CONTINUATION})

_SETTING = struct.Struct(">HL")
_NUMBER = struct.Struct(">L")
PRIORITY_BYTES = 5
GO_AWAY_BYTES = 8  #: at least


class Fault(IntEnum):
    """Why a stream or a connection is given up, by HTTP/2's numbers."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    FLOW_CONTROL_ERROR = 3
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    ENHANCE_YOUR_CALM = 11


class Broken(Exception):
    """The other side broke the protocol: the connection cannot go on."""

    def __init__(self, fault: Fault, why: str) -> None:
        super().__init__(why)
        self.fault = fault


def after_preface(data: bytes) -> int:
    """Return where the first frame of a client begins; 0 as long as too little has come.

    Raises:
        Broken: it does not begin as a client does.
    """
    if not data.startswith(PREFACE[: len(data)]):
        raise Broken(Fault.PROTOCOL_ERROR, "this is not HTTP/2")
    if len(data) < len(PREFACE) + HEAD.size:
        return 0
    *_, kind, flags, _ = HEAD.unpack_from(data, len(PREFACE))
    if kind != SETTINGS or flags & ACK:
        raise Broken(Fault.PROTOCOL_ERROR, "a client begins with its settings")
    return len(PREFACE)


def head_of(kind: int, flags: int, stream: int, size: int) -> bytes:
    """Return the nine bytes before a payload of ``size`` bytes."""
    return HEAD.pack(size >> 8, size & 0xFF, kind, flags, stream)


def frame(kind: int, flags: int, stream: int, payload: bytes | memoryview = b"") -> bytes:
    """Return a whole frame."""
    return b"".join((head_of(kind, flags, stream, len(payload)), payload))


def settings(values: dict[int, int]) -> bytes:
    """Return the frame that tells these settings."""
    return frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(*pair) for pair in values.items()))


def settings_of(payload: bytes) -> dict[int, int]:
    """Read the payload of SETTINGS.

    Raises:
        Broken: it is not one, or a value is not allowed.
    """
    if len(payload) % _SETTING.size:
        raise Broken(Fault.FRAME_SIZE_ERROR, f"SETTINGS of {len(payload)} bytes")
    told = dict(_SETTING.iter_unpack(payload))
    if told.get(ENABLE_PUSH, 0) > 1:
        raise Broken(Fault.PROTOCOL_ERROR, "pushing is neither on nor off")
    if told.get(INITIAL_WINDOW_SIZE, 0) > MOST_WINDOW:
        raise Broken(Fault.FLOW_CONTROL_ERROR, "an initial window of over 2^31 - 1 bytes")
    if not MOST_PAYLOAD <= told.get(MAX_FRAME_SIZE, MOST_PAYLOAD) < 2**24:
        raise Broken(Fault.PROTOCOL_ERROR, f"frames of {told[MAX_FRAME_SIZE]} bytes at most")
    return told


def window_update(stream: int, more: int) -> bytes:
    """Let the other side send ``more`` bytes; on stream 0, on all streams together."""
    return frame(WINDOW_UPDATE, 0, stream, _NUMBER.pack(more))


def reset(stream: int, fault: Fault) -> bytes:
    """Give a stream up."""
    return frame(RST_STREAM, 0, stream, _NUMBER.pack(fault))


def go_away(last: int, fault: Fault, why: str = "") -> bytes:
    """Say that streams after ``last`` are not dealt with on this connection."""
    return frame(GOAWAY, 0, 0, _NUMBER.pack(last) + _NUMBER.pack(fault) + why.encode())


def of_the_connection(stream: int) -> None:
    """Refuse a frame that is about the whole connection, and names a stream.

    Raises:
        Broken: it does.
    """
    if stream:
        raise Broken(Fault.PROTOCOL_ERROR, f"a frame of the whole connection on stream {stream}")


def number_of(payload: bytes) -> int:
    """Read a payload that is one number, without its reserved bit.

    Raises:
        Broken: it has another size.
    """
    if len(payload) != _NUMBER.size:
        raise Broken(Fault.FRAME_SIZE_ERROR, f"a number of {len(payload)} bytes")
    return int(_NUMBER.unpack(payload)[0]) & MOST_WINDOW


def unpadded(flags: int, payload: bytes) -> bytes:
    """Return a payload without its padding.

    Raises:
        Broken: there is more padding than payload.
    """
    if not flags & PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise Broken(Fault.PROTOCOL_ERROR, "more padding than payload")
    return payload[1 : len(payload) - payload[0]]


def header_block(flags: int, payload: bytes) -> bytes:
    """Return the part of a header block that a HEADERS frame has.

    Raises:
        Broken: it is not well formed.
    """
    block = unpadded(flags, payload)
    if not flags & WITH_PRIORITY:
        return block
    if len(block) < PRIORITY_BYTES:
        raise Broken(Fault.FRAME_SIZE_ERROR, "HEADERS too short for its priority")
    return block[PRIORITY_BYTES:]
