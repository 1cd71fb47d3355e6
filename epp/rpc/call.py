"""One gRPC call as its method sees it: messages in, messages out, and how it ends.

Calls of one connection send as fast as the other side lets each and all of them together. What a
method has not read yet is bounded: no more is let in meanwhile.

**Source:** gRPC, doc/PROTOCOL-HTTP2.md; RFC 9113, 5.2.
"""

from __future__ import annotations

import asyncio
import logging
import struct
import traceback
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from epp.rpc.frames import DATA, Fault, frame, head_of, reset, window_update
from epp.rpc.heads import Head, answer_head, end
from epp.rpc.packed import BITS, PLAIN, Packed, unpack
from epp.rpc.status import Aborted, Code, Gone

WINDOW = 2**20  #: bytes that the other side may send before it is let send more
PREFIX = struct.Struct(">BL")  #: before each message: compressed or not, and its size

log = logging.getLogger(__name__)


class EndOfMessages:
    """What is read after the last message."""


EOF: Final = EndOfMessages()


class Line(Protocol):
    """The connection, as far as a call needs it."""

    window: int  #: bytes that all calls together may send
    most_frame: int  #: bytes of a frame's payload
    most_taken: int  #: bytes of a message that comes in
    most_sent: int  #: bytes of one that goes out
    paused: bool  #: what was sent has not left yet
    blocked: set[Call]  #: calls that wait for leave to send

    def send(self, data: bytes) -> None:
        """Send frames."""
        ...

    def forget(self, call: Call) -> None:
        """Let go of a call that is over."""
        ...


class Call:
    """One call. `read` and `write` are for one task each."""

    __slots__ = (
        "_answered", "_line", "_messages", "_partial", "_received", "_unread", "_waiter",
        "_writable", "closed", "ended", "head", "number", "task", "timer", "window",
    )  # fmt: skip

    def __init__(self, line: Line, number: int, head: Head, *, window: int) -> None:
        self.number = number  #: the stream's
        self.head = head
        self.window = window  #: bytes that it may send
        self.closed = False  #: nothing is sent any more
        self.ended = False  #: the other side sends no more
        self.task: asyncio.Task[None] | None = None  #: its method
        self.timer: asyncio.TimerHandle | None = None  #: until it must be over
        self._line = line
        self._messages: deque[bytes] = deque()
        self._unread = 0  #: bytes of `_messages`
        self._partial = bytearray()  #: of a message that is not whole
        self._received = 0  #: bytes since the other side was last let send more
        self._answered = False  #: the answer's head was sent
        self._waiter: asyncio.Future[None] | None = None
        self._writable: asyncio.Future[None] | None = None

    # --- for the method ----------------------------------------------------------------

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        """The call's metadata."""
        return self.head.metadata

    async def read(self) -> bytes | EndOfMessages:
        """Return the next message, or `EOF`.

        Raises:
            Aborted: it is compressed, and not well.
        """
        while not self._messages:
            if self.ended:
                return EOF
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        message = self._messages.popleft()
        self._unread -= len(message)
        self._let_more()
        if type(message) is Packed:
            return await unpack(message, self.head.encoding, self._line.most_taken)
        return message

    async def write(self, message: bytes) -> None:
        """Send a message; returns once it is on its way.

        Raises:
            Gone: the call is over.
            Aborted: the message is too large.
        """
        if self.closed:
            raise Gone("the call is over")
        line, size = self._line, PREFIX.size + len(message)
        if size - PREFIX.size > line.most_sent:
            words = f"a message of {len(message)} bytes is larger than the {line.most_sent} allowed"
            raise Aborted(Code.RESOURCE_EXHAUSTED, words)
        begin = b"" if self._answered else answer_head(self.number, tells=self.head.tells)
        self._answered = True
        if size > min(self.window, line.window, line.most_frame) or line.paused:
            if begin:
                line.send(begin)
            await self._write_slowly(memoryview(PREFIX.pack(0, len(message)) + message))
            return
        self.window -= size
        line.window -= size
        head = head_of(DATA, 0, self.number, size)
        line.send(b"".join((begin, head, PREFIX.pack(0, len(message)), message)))

    async def _write_slowly(self, data: memoryview) -> None:
        line, at = self._line, 0
        while at < len(data):
            size = min(self.window, line.window, line.most_frame, len(data) - at)
            if line.paused or size <= 0:
                await self._until_writable()
                continue
            self.window -= size
            line.window -= size
            line.send(frame(DATA, 0, self.number, data[at : at + size]))
            at += size

    async def abort(self, code: Code, details: str) -> None:
        """End the call with a status; never returns.

        Raises:
            Aborted: always.
        """
        raise Aborted(code, details)

    # --- for the connection ------------------------------------------------------------

    async def run(self, method: Callable[[Call], Awaitable[None]]) -> None:
        """Let its method serve it, and say how that ended."""
        try:
            await method(self)
            self.finish()
        except Aborted as error:
            self.finish(error.code, error.details)
        except Gone:
            pass
        except Exception as error:  # noqa: BLE001 - the call is answered, and nothing else suffers
            where = "".join(traceback.format_tb(error.__traceback__))
            log.error("%s: unexpected %s\n%s", self.head.path, type(error).__name__, where)  # noqa: TRY400 - its message may quote a prompt
            self.finish(Code.UNKNOWN, "unexpected error")
        finally:
            self.finish(Code.CANCELLED, "the call was cancelled")
            self.task = None
            self._line.forget(self)

    def feed(self, data: bytes, size: int) -> None:
        """Take a piece of what the other side sends, of ``size`` bytes with its padding."""
        self._received += size
        if self._received > WINDOW:
            self.refuse(Fault.FLOW_CONTROL_ERROR)
            return
        if self._partial or len(data) < PREFIX.size:
            self._partial += data
        elif not data[0] and len(data) == PREFIX.size + int.from_bytes(data[1 : PREFIX.size]):
            self._take(data[PREFIX.size :])  # most often a message is whole, and alone
        else:
            self._partial += data
        if self._partial:
            self._split()
        self._let_more()

    def half_close(self) -> None:
        """The other side sends no more."""
        self.ended = True
        if self._partial:
            self.fail(Code.INTERNAL, "the last message is not whole")
        self._wake()

    def lost(self) -> None:
        """The other side is gone, or gave the call up."""
        self.closed = True
        task, self.task = self.task, None  # which would keep this call, and what it has read
        if task is not None:
            task.cancel()

    def finish(self, code: Code = Code.OK, details: str = "") -> None:
        """Send how it ended; only the first call counts."""
        if self.closed:
            return
        self.closed = True
        tells = self.head.tells
        frames = end(self.number, code, details, begun=self._answered, tells=tells)
        if not self.ended:  # what is still sent is in vain
            frames += reset(self.number, Fault.NO_ERROR)
        self._line.send(frames)

    def fail(self, code: Code, details: str) -> None:
        """End it from outside: its method is cancelled."""
        self.finish(code, details)
        self._line.forget(self)  # a task that is cancelled before it began does nothing
        self.lost()

    def refuse(self, fault: Fault) -> None:
        """Give it up, since the other side broke the rules of its stream."""
        if not self.closed:
            self.closed = True
            self._line.send(reset(self.number, fault))
        self._line.forget(self)
        self.lost()

    def wake_writer(self) -> None:
        """There may be leave to send."""
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)

    def _take(self, message: bytes) -> None:
        self._messages.append(message)
        self._unread += len(message)
        self._wake()

    def _split(self) -> None:
        """Take each message that is whole."""
        partial, most = self._partial, self._line.most_taken
        while len(partial) >= PREFIX.size and not self.closed:
            compressed, size = PREFIX.unpack_from(partial)
            if compressed and self._refused(compressed):
                return
            if size > most:
                words = f"a message of {size} bytes is larger than the {most} that are taken"
                self.fail(Code.RESOURCE_EXHAUSTED, words)
            elif len(partial) < PREFIX.size + size:
                return
            else:
                with memoryview(partial) as whole:
                    message = bytes(whole[PREFIX.size : PREFIX.size + size])
                self._take(Packed(message) if compressed else message)
                del partial[: PREFIX.size + size]

    def _refused(self, compressed: int) -> bool:
        """Whether the call failed for how its message is compressed."""
        encoding = self.head.encoding
        if encoding in BITS and compressed == 1:
            return False
        if encoding in PLAIN or compressed > 1:
            self.fail(Code.INTERNAL, "a message is said to be compressed, and not how")
        else:
            self.fail(Code.UNIMPLEMENTED, f"messages must not be compressed by {encoding}")
        return True

    def _let_more(self) -> None:
        """Let the other side send more, unless much of what it sent is not read."""
        if self._received >= WINDOW // 2 and self._unread < WINDOW and not self.ended:
            if not self.closed:
                self._line.send(window_update(self.number, self._received))
            self._received = 0

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _until_writable(self) -> None:
        self._writable = asyncio.get_running_loop().create_future()
        self._line.blocked.add(self)
        try:
            await self._writable
        finally:
            self._writable = None
            self._line.blocked.discard(self)
        if self.closed:
            raise Gone("the call is over")
