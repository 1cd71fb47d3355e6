"""The ext_proc service: reads, waits, writes. One stream is one HTTP exchange.

What a stream does is decided in `session`; here is only what must wait. Every way a stream can
end ends its exchange exactly once, and every error gets an answer: an `EppError` its own, any
other exception is logged once, without its message, and answered 500. Cancellation always
passes through: whoever waits for a call to end would wait for ever.

Messages come and go as bytes, so that constant replies are never built again.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from epp.answering import Restoring, restoring_of
from epp.errors import EppError, Internal, ShuttingDown, TooSlow
from epp.exchange import Exchange
from epp.extproc import wire
from epp.extproc.answers import ErrorFormat
from epp.extproc.budget import BodyBudget
from epp.extproc.messages import (
    Body,
    Event,
    Head,
    Mode,
    Named,
    Part,
    Reporting,
    RequestReady,
    Side,
)
from epp.extproc.needs import (
    AnswerHeaders,
    AnswerMetadata,
    AnswerTimes,
    Choose,
    Counters,
    Desk,
    Metadata,
    OnAnswerPiece,
    Routes,
    Tracing,
    Unseen,
)
from epp.extproc.port.hosts import foreign
from epp.extproc.session import Session
from epp.extproc.uploads import Uploads
from epp.formats.injected import asking_usage
from epp.headers import REQUEST_ID
from epp.model import InferenceRequest, Outcome
from epp.rpc.call import Call, EndOfMessages
from epp.rpc.connection import Method, Methods
from epp.rpc.status import CallError, Code

log = logging.getLogger(__name__)


class Settings(msgspec.Struct, frozen=True):
    """What an operator may set."""

    max_body_bytes: int = 32 * 1024 * 1024  #: of one request; more is answered 413
    max_buffered_bytes: int = 512 * 1024 * 1024  #: of all requests that are not yet forwarded
    body_timeout: float = 60.0  #: that a body may take, about; more is answered 408; 0: no bound
    error_format: ErrorFormat = "openai"
    only_hosts: tuple[
        str, ...
    ] = ()  #: requests for others go on without a pick; none: all are ours
    inject_usage: bool = False  #: ask engines for a stream's usage, and keep it from the client
    silence_seconds: float = 0.1
    """How long to wait for a body of a gateway that does not tell its mode; well below
    Envoy's ``message_timeout``, by default 0.2 s."""


Around = Callable[[Method], Method]


def _new_id() -> str:
    return str(uuid.uuid4())


class ExtProcService:
    """``envoy.service.ext_proc.v3.ExternalProcessor``.

    Args:
        router: decides; see `Routes`.
        settings: limits and forms.
        unseen: takes exchanges whose answer is not shown to us; None ends them as UNKNOWN.
        counters: is told what happens.
        answer_headers: headers to set on an answer, where it passes through us; None sets none.
        on_answer_piece: sees each piece of an answer that passes through us, after the client's
            copy was queued.
        new_id: makes a request id up.
    """

    def __init__(
        self,
        router: Routes,
        *,
        settings: Settings | None = None,
        unseen: Unseen | None = None,
        counters: Counters | None = None,
        answer_headers: AnswerHeaders | None = None,
        on_answer_piece: OnAnswerPiece | None = None,
        new_id: Callable[[], str] = _new_id,
    ) -> None:
        self.router = router
        self.settings = settings or Settings()
        self.foreign = foreign(self.settings.only_hosts)
        self.unseen = unseen
        self.counters = counters or Counters()
        self.answer_headers = answer_headers
        self.on_answer_piece = on_answer_piece
        self.new_id = new_id
        self.answer_metadata: AnswerMetadata | None = None  #: asked once an answer is whole
        self.times: AnswerTimes | None = None
        self.choose: Choose | None = None  #: the desk of a request; None: all are dealt with here
        self.tracing: Tracing | None = None  #: told of every stream; None traces nothing
        self.budget = BodyBudget(self.settings.max_buffered_bytes)
        self.uploads = Uploads(self.settings.body_timeout)
        self.open_stream: Callable[[ExtProcService, Call], Stream] = Stream
        self.around: Around | None = None  #: wraps the handling of each stream
        self.active = 0  #: streams open now
        self.draining = False  #: new streams are answered with `ShuttingDown`
        self._warned = False  #: of answers that are not shown to us
        self.idle = asyncio.Event()  #: set while no stream is open
        self.idle.set()

    def methods(self, port: int = 0) -> Methods:
        """What gateways call, on a pool's own ``port`` if not 0."""
        process: Method = partial(self._process, port=port)
        if self.around is not None:
            process = self.around(process)
        return {f"/{wire.SERVICE}/Process": process}

    def warn_hidden(self) -> None:
        """Say once that usage is not asked for, since it could not be taken out of the answer."""
        if not self._warned:
            self._warned = True
            log.warning(
                "--inject-usage: no usage is asked for where answers do not pass through the picker"
                " in mode FULL_DUPLEX_STREAMED"
            )

    async def _process(self, call: Call, *, port: int = 0) -> None:
        self.active += 1
        self.idle.clear()
        self.counters.stream_started()
        stream = self.open_stream(self, call)
        stream.port = port
        try:
            await stream.run()
        finally:
            stream.close()
            if self.tracing is not None:
                self.tracing.closed()
            self.active -= 1
            if not self.active:
                self.idle.set()
            self.counters.stream_ended()


class Stream:
    """One stream's session and exchange, for as long as it is open."""

    __slots__ = (
        "_asked_usage", "_call", "_closed", "_desk", "_exchange", "_failed", "_forwarded",
        "_late", "_pending", "_refuse", "_restoring", "_service", "_session", "_task", "port",
    )  # fmt: skip

    def __init__(self, service: ExtProcService, call: Call) -> None:
        settings = service.settings
        self.port = 0  #: where it came in; 0: the port that all pools share
        self._service = service
        self._desk: Desk = service  #: where the request is dealt with
        self._call = call
        self._session = Session(
            max_body_bytes=settings.max_body_bytes,
            budget=service.budget,
            new_id=service.new_id,
            error_format=settings.error_format,
            foreign=service.foreign,
        )
        self._exchange: Exchange | None = None
        self._asked_usage = False  #: of the engine, though the client did not
        self._restoring: Restoring | None = None
        self._refuse = service.draining
        self._forwarded = False  #: all that forwards the request was written, or nearly
        self._failed = False  #: an error of ours after the pick
        self._closed = False  #: the gateway closed the stream in order, or may do so now
        #: A read begun while guessing.
        self._pending: asyncio.Future[bytes | EndOfMessages] | None = None
        self._task: asyncio.Task[Any] | None = None  #: that waits for the rest of a body
        self._late = False  #: the body took too long

    async def run(self) -> None:
        """Serve the stream until either side is done with it."""
        try:
            await self._run()
        except asyncio.CancelledError:
            if not self._late or self._task is None or self._task.uncancel():
                raise
            seconds = self._service.settings.body_timeout
            await self._reject(TooSlow(f"the request body took longer than {seconds:g} s"))

    def late(self) -> None:
        """See `uploads.Upload.late`."""
        # It is not awaited any more where the gateway has answered by itself.
        if self._task is not None and self._session.request is Part.COLLECTING:
            self._late = True
            self._task.cancel()

    async def _run(self) -> None:
        session, read = self._session, self._call.read
        while not (session.finished or self._closed):
            guessing = session.guessing or self._pending is not None
            data = await (self._read_guessing() if guessing else read())
            if isinstance(data, EndOfMessages):
                self._closed = True
                return
            try:
                await self._step(data)
            except EppError as error:
                await self._reject(error)
            except CallError:
                raise  # the stream is gone: nobody is left to answer
            except Exception as error:  # noqa: BLE001 - no exception escapes without an answer
                self._log(error)
                await self._reject(Internal("the endpoint picker failed"))

    def close(self) -> None:
        """End what is not ended. Called exactly once, however the stream ended."""
        session, exchange = self._session, self._exchange
        session.free()
        self._service.uploads.ended(self)
        self._task = None  # once cancelled it keeps its frames, and so the body, by a circle
        if self._pending is not None:
            self._pending.cancel()
        if session.spurious:
            self._service.counters.spurious(session.spurious)
        if exchange is None or exchange.ended:
            return
        if self._failed:
            exchange.end(Outcome.FAILED)
        elif self._forwarded:
            self._leave(exchange, unseen=session.unseen(closed=self._closed))
        else:
            exchange.end(Outcome.ABANDONED)

    def _leave(self, exchange: Exchange, *, unseen: bool) -> None:
        """Leave it to others to tell how an answer ends that is ``unseen``, or has broken off."""
        keeper = self._service.unseen
        if keeper is not None and (unseen or keeper.asks_why):
            if not unseen:
                exchange.break_off()
            keeper.adopt(exchange)
        else:
            exchange.end(Outcome.UNKNOWN if unseen else Outcome.ABANDONED)

    async def _step(self, data: bytes | None) -> None:
        """Take one message, None for the gateway's silence; write what it asks for."""
        session, write = self._session, self._call.write
        event = session.silence() if data is None else self._receive(data)
        if type(event) is RequestReady:
            self._service.uploads.ended(self)
            self._exchange = exchange = await self._desk.router.route(event.arrival)
            tracing = self._service.tracing
            pick = exchange.sent if tracing is None else tracing.routed(exchange)
            unseen = self._service.unseen
            logged = unseen is not None and unseen.logs_connected > 0  # it is Envoy, and lean
            session.accept(pick, self._body(exchange.request), at_once=logged)
            replies = session.replies()
            if unseen is not None:
                replies[0] = Named(replies[0], unseen.name(exchange))  # type: ignore[arg-type]
            last = replies.pop()
            for reply in replies:
                await write(wire.encode(reply))
            frame = wire.encode(last)
            # The gateway may be done with the stream before the last write has returned.
            self._forwarded = True
            await write(frame)
            session.free()
            exchange.forwarded()
            if logged and session.told_all:
                self._closed = True  # nothing more is coming: spare the gateway and us a turn
            return
        if session.request is Part.COLLECTING and self._task is None:
            self._task = asyncio.current_task()
            self._service.uploads.began(self)
        told = None
        if event is not None and self._exchange is not None:
            told = self._observe(event, self._exchange)
        replies = session.replies()
        if self._restoring is not None:
            replies = self._restoring.apply(replies)
        if told:
            replies[-1] = Reporting(replies[-1], told)  # type: ignore[arg-type]
        for reply in replies:
            await write(wire.encode(reply))

    def _body(self, request: InferenceRequest) -> bytes:
        """The body to forward. It asks for usage only where that can be taken out again."""
        asking = asking_usage(request) if self._service.settings.inject_usage else None
        if asking is None:
            return request.body
        told = self._session.told
        if told is None or told.response is not Mode.FULL_DUPLEX_STREAMED:
            self._service.warn_hidden()
            return request.body
        self._asked_usage = True
        return asking

    def _receive(self, data: bytes) -> Event | None:
        message = wire.decode(data)
        if message is None:
            return None
        tracing = self._service.tracing
        if tracing is not None and type(message) is Head and message.side is Side.REQUEST:
            tracing.began(message.headers)
        if self._refuse and message.side is Side.REQUEST:
            raise ShuttingDown("the endpoint picker is shutting down")
        choose = self._service.choose
        if choose is not None and type(message) is Head and message.side is Side.REQUEST:
            self._desk = choose(data, self._call, self.port)
        return self._session.receive(message)

    def _observe(self, event: Event, exchange: Exchange) -> Metadata | None:
        """Tell the exchange about a part of its answer; return what to tell the gateway of it."""
        service, desk, kind = self._service, self._desk, type(event)
        if kind is Body:
            data = event.data  # type: ignore[union-attr]
            exchange.response_piece(len(data))
            if service.on_answer_piece is not None:
                service.on_answer_piece(exchange, data)
        elif kind is Head:
            headers = event.headers  # type: ignore[union-attr]
            status = headers.get(":status", "")
            exchange.response_head(
                int(status) if status.isdecimal() else None,
                streamed="text/event-stream" in headers.get("content-type", ""),
                served=event.served,  # type: ignore[union-attr]
            )
            if desk.answer_headers is not None:
                self._session.set_on_answer(desk.answer_headers(exchange))
            mode = self._session.response_mode
            self._restoring = restoring_of(
                exchange.request, headers, mode, asked_usage=self._asked_usage
            )
        if self._session.response is not Part.ENDED or exchange.ended:
            return None
        exchange.complete()
        return None if desk.answer_metadata is None else desk.answer_metadata(exchange)

    async def _reject(self, error: EppError) -> None:
        self._failed = True
        service = self._service
        self._desk.counters.refused(error)
        if service.tracing is not None:
            service.tracing.refused(error)
        if not self._session.reject(error):
            await self._call.abort(Code.INTERNAL, "the endpoint picker failed within a response")
        for reply in self._session.replies():
            await self._call.write(wire.encode(reply))

    def _log(self, error: Exception) -> None:
        """Say what failed and where, without the exception's message: it may quote a prompt."""
        where = "".join(traceback.format_tb(error.__traceback__))
        kind = type(error).__name__
        log.error(
            "request %.80r: unexpected %s in the picker\n%s",
            self._session.id,
            kind,
            where,
            extra={"fields": {REQUEST_ID: self._session.id}},
        )

    async def _read_guessing(self) -> bytes | EndOfMessages | None:
        """Read a message, or None if the gateway stays silent; that read then goes on."""
        if self._pending is None:
            self._pending = asyncio.ensure_future(self._call.read())
        seconds = self._service.settings.silence_seconds if self._session.guessing else None
        done, _ = await asyncio.wait({self._pending}, timeout=seconds)
        if not done:
            return None
        read, self._pending = self._pending, None
        return read.result()
