"""An HTTP/2 client: streams with bodies of any size, trailers both ways, as gRPC uses them.

``async with Connection(port) as connection: await connection.ask("POST", path, headers, body)``.
Cleartext with prior knowledge; several ``ask`` may run at once on one connection.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any, Self

import h2.config
import h2.connection
import h2.events
import h2.exceptions
from h2.errors import ErrorCodes
from h2.settings import SettingCodes

from tests.support.http1 import Answer

LIMIT_SECONDS = 60.0
WINDOW_BYTES = 2**24
READ_BYTES = 2**18


class Stream:
    """What has come of one answer."""

    def __init__(self) -> None:
        self.answer = Answer(0, {})
        self.data: list[bytes] = []
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.ended.add_done_callback(lambda done: done.cancelled() or done.exception())

    def finish(self, error: Exception | None = None) -> None:
        if self.ended.done():
            return
        self.answer.body = b"".join(self.data)
        if error is None:
            self.ended.set_result(None)
        else:
            self.ended.set_exception(error)


class Connection:
    """One connection with any number of streams."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.streams: dict[int, Stream] = {}
        self._h2 = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=True, header_encoding="utf-8")
        )
        self._window = asyncio.Event()  #: set when the other side let us send more

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self.port)
        self._h2.initiate_connection()
        self._h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: WINDOW_BYTES})
        self._h2.increment_flow_control_window(WINDOW_BYTES)
        self._flush()
        self._reading = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()
        await self._reading

    async def ask(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        trailers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send a request and read its whole answer.

        Raises:
            ConnectionError: the stream was reset or the connection ended.
        """
        async with asyncio.timeout(LIMIT_SECONDS):
            number = self.send_head(method, path, headers, last=not body and not trailers)
            stream = self.streams[number]
            with contextlib.suppress(h2.exceptions.ProtocolError):  # answered before all was sent
                await self._send(number, stream, body, trailers)
            await stream.ended
            return stream.answer

    def send_head(
        self, method: str, path: str, headers: Mapping[str, str] | None = None, *, last: bool = True
    ) -> int:
        """Open a stream and return its number; see `streams`. ``last``: no body follows."""
        number = self._h2.get_next_available_stream_id()
        self.streams[number] = Stream()
        pairs = [(":method", method), (":scheme", "http"), (":authority", "test"),
                 (":path", path), *(headers or {}).items()]  # fmt: skip
        self._h2.send_headers(number, pairs, end_stream=last)
        self._flush()
        return number

    def send_data(self, number: int, data: bytes, *, last: bool = False) -> None:
        """Send a piece of a body, within the window."""
        self._h2.send_data(number, data, end_stream=last)
        self._flush()

    def reset(self, number: int) -> None:
        """RST_STREAM: give one request up, and keep the connection."""
        self._h2.reset_stream(number, ErrorCodes.CANCEL)
        self._flush()

    def abort(self) -> None:
        """End the connection with RST, as a client does that was killed."""
        self._writer.transport.abort()

    async def _send(
        self, number: int, stream: Stream, body: bytes, trailers: Mapping[str, str] | None
    ) -> None:
        view, connection = memoryview(body), self._h2
        while view and not stream.ended.done():
            allowed = connection.local_flow_control_window(number)
            size = min(len(view), allowed, connection.max_outbound_frame_size)
            if not size:
                self._window.clear()
                await self._window.wait()
                continue
            last = size == len(view) and not trailers
            connection.send_data(number, view[:size], end_stream=last)
            view = view[size:]
            self._flush()
            await self._writer.drain()
        if trailers:
            connection.send_headers(number, list(trailers.items()), end_stream=True)
            self._flush()

    async def _read(self) -> None:
        with contextlib.suppress(OSError):
            while data := await self._reader.read(READ_BYTES):
                for event in self._h2.receive_data(data):
                    self._take(event)
                self._flush()
        for stream in self.streams.values():
            stream.finish(ConnectionResetError("the connection ended"))
        self._window.set()

    def _take(self, event: Any) -> None:
        if isinstance(event, h2.events.WindowUpdated | h2.events.RemoteSettingsChanged):
            self._window.set()
            return
        stream = self.streams.get(getattr(event, "stream_id", 0) or 0)
        if stream is None:
            return
        match event:
            case h2.events.ResponseReceived():
                headers = dict(event.headers)
                stream.answer.status = int(headers.pop(":status"))
                stream.answer.headers = headers
            case h2.events.DataReceived():
                stream.data.append(event.data)
                size = event.flow_controlled_length
                self._h2.acknowledge_received_data(size, event.stream_id)
            case h2.events.TrailersReceived():
                stream.answer.trailers = dict(event.headers)
            case h2.events.StreamEnded():
                stream.finish()
                self._window.set()
            case h2.events.StreamReset():
                stream.finish(ConnectionResetError(f"stream reset: {event.error_code}"))
                self._window.set()

    def _flush(self) -> None:
        if data := self._h2.data_to_send():
            self._writer.write(data)


async def request(
    port: int,
    method: str,
    path: str,
    headers: Mapping[str, str] | None = None,
    body: bytes = b"",
    *,
    trailers: Mapping[str, str] | None = None,
) -> Answer:
    """One request on a connection of its own."""
    async with Connection(port) as connection:
        return await connection.ask(method, path, headers, body, trailers=trailers)
