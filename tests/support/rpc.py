"""An HTTP/2 client and a connection of `epp.rpc` without a socket between them."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Any

import h2.config
import h2.connection
import h2.events

from epp.rpc.connection import Connection, Methods

HEAD = (
    (":method", "POST"), (":scheme", "http"), (":path", "/a.B/Do"), (":authority", "picker"),
    ("te", "trailers"), ("content-type", "application/grpc"),
)  # fmt: skip
#: That head as a block of literals that no table keeps.
PLAIN_HEAD = b"".join(
    b"\x00" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
    for name, value in HEAD
)
TURNS = 20  #: of the loop, after which all that can happen has happened


def message(data: bytes, *, compressed: bool = False) -> bytes:
    """A gRPC message with its prefix."""
    return struct.pack(">BL", compressed, len(data)) + data


class Wire(asyncio.Transport):
    """The connection's end of a socket."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = bytearray()
        self.unsent = 0  #: bytes said to wait
        self.closed = False
        self.reading = True
        self.connection: Connection | None = None

    def write(self, data: Any) -> None:
        self.sent += data

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            assert self.connection is not None
            asyncio.get_running_loop().call_soon(self.connection.connection_lost, None)

    abort = close

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return self.unsent


class Talk:
    """A client that speaks with a connection."""

    def __init__(self, methods: Methods, *, most: int = 2**20, begun: bool = True) -> None:
        self.wire = Wire()
        self.ended = 0  #: times the connection said that it is lost
        self.events: list[h2.events.Event] = []
        self.client = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        self.connection = Connection(
            methods, (most, most), opened=lambda connection: None, ended=self._on_end
        )
        self.wire.connection = self.connection
        self.connection.connection_made(self.wire)
        if begun:
            self.client.initiate_connection()
            self.pump()

    def _on_end(self, connection: Connection) -> None:
        assert connection is self.connection
        self.ended += 1

    def pump(self, *, slowly: bool = False) -> None:
        """Hand over what either side has to say; ``slowly`` byte by byte."""
        told = self.client.data_to_send()
        for at in range(0, len(told), 1 if slowly else max(len(told), 1)):
            self.connection.data_received(told[at : at + (1 if slowly else len(told))])
        self.events += self.client.receive_data(bytes(self.wire.sent))
        self.wire.sent.clear()

    def raw(self, data: bytes) -> bytes:
        """Send bytes as they are; return what is answered at once."""
        self.connection.data_received(data)
        answer = bytes(self.wire.sent)
        self.wire.sent.clear()
        return answer

    async def settle(self) -> None:
        """Return when nothing more happens."""
        for _ in range(TURNS):
            await asyncio.sleep(0)
            self.pump()

    def open(self, *extra: tuple[str, str], ends: bool = False, **options: Any) -> int:
        """Open a call; return its stream."""
        stream: int = self.client.get_next_available_stream_id()
        self.client.send_headers(stream, [*HEAD, *extra], end_stream=ends, **options)
        return stream

    def messages(self, stream: int) -> bytes:
        """All data that came on a stream, with the prefixes of its messages."""
        kind = h2.events.DataReceived
        return b"".join(
            e.data for e in self.events if isinstance(e, kind) and e.stream_id == stream
        )

    def status(self, stream: int) -> tuple[str, str] | None:
        """gRPC's status and message of a call; None while it is open."""
        found: dict[str, str] = {}
        for event in self.events:
            kinds = (h2.events.ResponseReceived, h2.events.TrailersReceived)
            if isinstance(event, kinds) and event.stream_id == stream:
                found.update(event.headers)
        code = found.get("grpc-status")
        return None if code is None else (code, found.get("grpc-message", ""))

    def seen(self, kind: type[Any], test: Callable[[Any], bool] = lambda event: True) -> bool:
        """Whether the client was told such a thing."""
        return any(isinstance(event, kind) and test(event) for event in self.events)
