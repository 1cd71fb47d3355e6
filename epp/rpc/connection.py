"""One HTTP/2 connection: frames in, calls begun and fed, windows kept.

A client that breaks the protocol loses its connection, with the reason in GOAWAY; one that sends
what it may not, or floods us with what we must answer, too.

**Source:** RFC 9113, 5 and 6; gRPC, doc/PROTOCOL-HTTP2.md and doc/keepalive.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from epp.rpc import frames
from epp.rpc.call import WINDOW, Call
from epp.rpc.frames import Broken, Fault
from epp.rpc.heads import MOST_BYTES, Heads, not_grpc
from epp.rpc.status import Code
from epp.rpc.turns import end_all

Method = Callable[[Call], Awaitable[None]]
Methods = Mapping[str, Method]  #: by path: ``/package.Service/Method``

PING_SECONDS = 60.0  #: without a word from the other side, until it is asked whether it lives
ANSWER_SECONDS = 20.0  #: to answer that, and to begin
MOST_CALLS = 2**15  #: open ones; a gateway with more opens another connection
MOST_UNSENT = 2**24  #: bytes that wait to be sent: only who reads nothing gets there
HIGH_WATER = 2**20  #: bytes that wait to be sent, at which calls wait, too
FRAMES_A_TURN = 16  #: of one client, until others have their turn
BLOCK_PIECE = 256  #: bytes of a header block that count as one more: they take long to read
REGRANT = 2**29  #: bytes received on the connection, until as many more are let in
_TAKEN = {frames.MAX_CONCURRENT_STREAMS: MOST_CALLS, frames.INITIAL_WINDOW_SIZE: WINDOW,
          frames.MAX_HEADER_LIST_SIZE: MOST_BYTES}  # fmt: skip
_SEEN = b"go away!"  #: of the ping whose answer says that GOAWAY was seen


class Connection(asyncio.Protocol):
    """One client.

    Args:
        methods: what can be called.
        most_bytes: of a message that comes in, and of one that goes out.
        opened: told of the connection when it is made, and
        ended: when it is lost.
    """

    def __init__(
        self,
        methods: Methods,
        most_bytes: tuple[int, int],
        *,
        opened: Callable[[Connection], None],
        ended: Callable[[Connection], None],
    ) -> None:
        self.calls: dict[int, Call] = {}  #: open ones, by stream
        self.window = frames.FIRST_WINDOW
        self.most_frame = frames.MOST_PAYLOAD
        self.most_taken, self.most_sent = most_bytes
        self.paused = False
        self.blocked: set[Call] = set()
        self._methods = methods
        self._opened, self._ended = opened, ended
        self._loop = asyncio.get_running_loop()
        self._heads = Heads()
        self._begun = False  #: the preface has come
        self._rest = b""  #: what came and was not taken
        self._waits = False  #: for its next turn to take it
        self._closed = False
        self._block: tuple[int, int, bytearray] | None = None  #: stream and flags of one not whole
        self._last = 0  #: the newest stream
        self._call_window = frames.FIRST_WINDOW  #: what each new call may send
        self._received = 0  #: bytes of DATA since more was let in
        self._heard = self._asked = False  #: since the last look; whether it lives
        self._leaving = self._told = False  #: GOAWAY was sent; and it was seen
        self._transport: asyncio.Transport
        self._timer = self._loop.call_later(ANSWER_SECONDS, self.look)

    # --- asyncio.Protocol --------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say what we take."""
        self._transport = transport  # type: ignore[assignment]
        self._transport.set_write_buffer_limits(high=HIGH_WATER)
        self._opened(self)
        everything = frames.MOST_WINDOW - frames.FIRST_WINDOW  # each call has a bound of its own
        self.send(frames.settings(_TAKEN) + frames.window_update(0, everything))

    def data_received(self, data: bytes) -> None:
        """Take what has come."""
        self._heard = True
        self._rest = self._rest + data if self._rest else data
        if not self._waits:
            self._go_on()

    def pause_writing(self) -> None:
        """Much waits to be sent."""
        self.paused = True

    def resume_writing(self) -> None:
        """It was sent."""
        self.paused = False
        self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        """Cancel every call."""
        self._closed = True
        self._timer.cancel()
        for call in self.calls.values():
            call.closed = True
        end_all(self.calls, self._lose, partial(self._ended, self))

    # --- for calls and the server --------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Send frames."""
        self._transport.write(data)

    def leave(self) -> None:
        """Ask the client to go elsewhere; what it sent before it hears of it is dealt with."""
        if not self._leaving:
            self._leaving = True
            asked = frames.frame(frames.PING, 0, 0, _SEEN)
            self.send(frames.go_away(frames.MOST_WINDOW, Fault.NO_ERROR) + asked)

    def close(self, fault: Fault = Fault.NO_ERROR, why: str = "") -> None:
        """End the connection, and every call that is still open."""
        if self._closed:
            return
        self._closed = True
        end = partial(Call.fail, code=Code.UNAVAILABLE, details=why or "the server is stopping")
        end_all(self.calls, end, partial(self._close, fault, why))

    def _close(self, fault: Fault, why: str) -> None:
        if self._begun and not self._transport.is_closing():
            self.send(frames.go_away(self._last, fault, why))
        self._transport.close()

    def abort(self) -> None:
        """End it without a word."""
        self._transport.abort()

    def look(self) -> None:
        """Drop a client that has not begun, or does not answer; ask one that is silent.

        It goes on by itself.
        """
        self._timer.cancel()
        if not self._begun or (self._asked and not self._heard):
            self.abort()
            return
        self._asked = not self._heard
        self._heard = False
        if self._asked:
            self.send(frames.frame(frames.PING, 0, 0, b"\0" * len(_SEEN)))
        seconds = ANSWER_SECONDS if self._asked else PING_SECONDS
        self._timer = self._loop.call_later(seconds, self.look)

    # --- frames --------------------------------------------------------------------------

    def _go_on(self) -> None:
        """Take a turn's frames of what came; nothing more is read before the last turn."""
        waited, self._waits = self._waits, False
        if self._closed:
            return
        try:
            self._rest = self._rest[self._take(self._rest) :]
        except Broken as error:
            self.close(error.fault, str(error))
            return
        if self._waits:
            self._loop.call_soon(self._go_on)
            if not waited:
                self._transport.pause_reading()
        elif waited:
            self._transport.resume_reading()

    def _take(self, data: bytes) -> int:
        """Take whole frames of ``data``, a turn's at most; return where the next one begins."""
        at, size, unpack = self._after_preface(data), len(data), frames.HEAD.unpack_from
        last = FRAMES_A_TURN
        while size - at >= frames.HEAD.size and self._begun and not self._closed:
            if last <= 0:
                self._waits = True
                break
            high, low, kind, flags, stream = unpack(data, at)
            end_at = at + frames.HEAD.size + (high << 8 | low)
            if high << 8 | low > frames.MOST_PAYLOAD:
                raise Broken(Fault.FRAME_SIZE_ERROR, f"a frame of {high << 8 | low} bytes")
            if end_at > size:
                break
            if self._block is not None and kind != frames.CONTINUATION:
                raise Broken(Fault.PROTOCOL_ERROR, "headers were broken off by another frame")
            last -= 1 if kind not in frames.HAVE_BLOCKS else 1 + (end_at - at) // BLOCK_PIECE
            payload = data[at + frames.HEAD.size : end_at]
            if kind < len(self._TAKE):
                self._TAKE[kind](self, flags, stream & frames.MOST_WINDOW, payload)
            at = end_at
        return at

    def _after_preface(self, data: bytes) -> int:
        at = 0 if self._begun else frames.after_preface(data)
        self._begun = self._begun or at > 0
        return at

    def _data(self, flags: int, stream: int, payload: bytes) -> None:
        self._received += len(payload)
        if self._received >= REGRANT:
            self.send(frames.window_update(0, self._received))
            self._received = 0
        call = self.calls.get(stream)
        if call is None:
            self._known(stream)
            return
        data = frames.unpadded(flags, payload)
        if call.ended:
            call.refuse(Fault.STREAM_CLOSED)
            return
        call.feed(data, len(payload))
        if flags & frames.END_STREAM:
            call.half_close()

    def _headers(self, flags: int, stream: int, payload: bytes) -> None:
        block = frames.header_block(flags, payload)
        if flags & frames.END_HEADERS:
            self._head(flags, stream, block)
        else:
            self._block = (stream, flags, bytearray(block))

    def _continuation(self, flags: int, stream: int, payload: bytes) -> None:
        if self._block is None or stream != self._block[0] or not payload:
            raise Broken(Fault.PROTOCOL_ERROR, "a continuation of nothing, or with nothing")
        _, first, block = self._block
        block += payload
        if len(block) > MOST_BYTES:  # as it comes, a block is smaller than what it says
            raise Broken(Fault.ENHANCE_YOUR_CALM, f"headers of over {MOST_BYTES} bytes")
        if flags & frames.END_HEADERS:
            self._block = None
            self._head(first, stream, bytes(block))

    def _head(self, flags: int, stream: int, block: bytes) -> None:
        head = self._heads.read(block)  # also of what is ignored: blocks refer to earlier ones
        call = self.calls.get(stream)
        if call is not None:
            self._trailers(flags, call)
            return
        if not stream & 1:
            raise Broken(Fault.PROTOCOL_ERROR, f"a client opened stream {stream}")
        if stream <= self._last:  # trailers of a call that is over
            if not flags & frames.END_STREAM:
                raise Broken(Fault.PROTOCOL_ERROR, f"a client opened stream {stream} again")
            return
        self._last = stream
        self._still_reads()
        call = Call(self, stream, head, window=self._call_window)
        call.ended = bool(flags & frames.END_STREAM)
        self._begin(call)

    def _trailers(self, flags: int, call: Call) -> None:
        if call.ended:
            call.refuse(Fault.STREAM_CLOSED)
        elif not flags & frames.END_STREAM:
            call.refuse(Fault.PROTOCOL_ERROR)
        else:
            call.half_close()

    def _priority(self, flags: int, stream: int, payload: bytes) -> None:
        """Priorities change nothing here."""
        if not stream:
            raise Broken(Fault.PROTOCOL_ERROR, "a priority of all streams")
        call = self.calls.get(stream)
        if len(payload) != frames.PRIORITY_BYTES and call is not None:
            call.refuse(Fault.FRAME_SIZE_ERROR)

    def _reset(self, flags: int, stream: int, payload: bytes) -> None:
        frames.number_of(payload)
        call = self.calls.get(stream)
        if call is None:
            self._known(stream)
            return
        self._lose(call)

    def _settings(self, flags: int, stream: int, payload: bytes) -> None:
        frames.of_the_connection(stream)
        if flags & frames.ACK:
            if payload:
                raise Broken(Fault.FRAME_SIZE_ERROR, "settings that acknowledge some, too")
            return
        told = frames.settings_of(payload)
        self.most_frame = min(told.get(frames.MAX_FRAME_SIZE, self.most_frame), WINDOW)
        window = told.get(frames.INITIAL_WINDOW_SIZE, self._call_window)
        if window != self._call_window:
            self._resize(window)
        self._answer(frames.frame(frames.SETTINGS, frames.ACK, 0))

    def _resize(self, window: int) -> None:
        """Let each call send ``window`` bytes from its beginning, also those that have begun."""
        for call in self.calls.values():
            call.window += window - self._call_window
            if call.window > frames.MOST_WINDOW:
                raise Broken(Fault.FLOW_CONTROL_ERROR, f"stream {call.number}'s window too large")
        self._call_window = window
        self._wake()

    def _push_promise(self, flags: int, stream: int, payload: bytes) -> None:
        raise Broken(Fault.PROTOCOL_ERROR, "a client made a promise")

    def _ping(self, flags: int, stream: int, payload: bytes) -> None:
        frames.of_the_connection(stream)
        if len(payload) != len(_SEEN):
            raise Broken(Fault.FRAME_SIZE_ERROR, f"a ping of {len(payload)} bytes")
        if not flags & frames.ACK:
            self._answer(frames.frame(frames.PING, frames.ACK, 0, payload))
        elif payload == _SEEN:
            self._told = True
            self._leave_if_done()

    def _go_away(self, flags: int, stream: int, payload: bytes) -> None:
        """The client opens no more calls; it closes the connection by itself."""
        frames.of_the_connection(stream)
        if len(payload) < frames.GO_AWAY_BYTES:
            raise Broken(Fault.FRAME_SIZE_ERROR, f"GOAWAY of {len(payload)} bytes")

    def _window_update(self, flags: int, stream: int, payload: bytes) -> None:
        more = frames.number_of(payload)
        call = self.calls.get(stream)
        holder = self if not stream else call
        if holder is None:
            self._known(stream)
            return
        holder.window += more
        if not more or holder.window > frames.MOST_WINDOW:
            fault = Fault.FLOW_CONTROL_ERROR if more else Fault.PROTOCOL_ERROR
            if call is None:
                raise Broken(fault, f"a window larger by {more} bytes")
            call.refuse(fault)
        elif call is not None:
            call.wake_writer()
        elif self.blocked:
            self._wake()

    def _known(self, stream: int) -> None:
        """Refuse what is about a stream that never was; what is about one that is over is late."""
        if stream > self._last or not stream & 1:
            raise Broken(Fault.PROTOCOL_ERROR, f"stream {stream} is not open")

    def _answer(self, data: bytes) -> None:
        """Send what the client can ask for without end."""
        self._still_reads()
        self.send(data)

    def _still_reads(self) -> None:
        if self.paused and self._transport.get_write_buffer_size() > MOST_UNSENT:
            raise Broken(Fault.ENHANCE_YOUR_CALM, "it asks and does not read the answers")

    # --- calls ---------------------------------------------------------------------------

    def _begin(self, call: Call) -> None:
        head = call.head
        method = self._methods.get(head.path)
        if not head.sound:
            self.send(frames.reset(call.number, Fault.PROTOCOL_ERROR))
        elif len(self.calls) >= MOST_CALLS:
            self.send(frames.reset(call.number, Fault.REFUSED_STREAM))
        elif not head.is_grpc:
            self.send(not_grpc(call.number))
        elif method is None:
            call.finish(Code.UNIMPLEMENTED, f"there is no {head.path}")
        else:
            self.calls[call.number] = call
            if head.seconds is not None:
                late = (Code.DEADLINE_EXCEEDED, "the call took too long")
                call.timer = self._loop.call_later(head.seconds, call.fail, *late)
            call.task = self._loop.create_task(call.run(method), name="call")

    def forget(self, call: Call) -> None:
        """Let go of a call that is over."""
        if self.calls.pop(call.number, None) is not None and call.timer is not None:
            call.timer.cancel()
        if self._leaving and not self.calls:
            self._leave_if_done()

    def _lose(self, call: Call) -> None:
        self.forget(call)
        call.lost()

    def _leave_if_done(self) -> None:
        if self._told and not self.calls:
            self.close()

    def _wake(self) -> None:
        for call in list(self.blocked):
            if call.window > 0:
                call.wake_writer()

    _TAKE = (
        _data, _headers, _priority, _reset, _settings, _push_promise, _ping, _go_away,
        _window_update, _continuation,
    )  # fmt: skip
    """What takes a frame, by its kind."""
