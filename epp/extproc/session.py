"""One ext_proc stream as a state machine, without I/O.

A session is fed each message from the gateway and says what it means; replies are queued in
the order the gateway requires and drained with `Session.replies`. `wire` translates and `server`
waits. All about the order of messages lives here; nothing about choosing an endpoint does.

The two sides are independent (an upgraded connection streams both ways at once)::

    request:   START -> COLLECTING -> ROUTING -> PASSING -> ENDED      any: reject() -> finished
    response:  START -> PASSING -> ENDED

When a request is decided depends on how the gateway shows its body:

===================== ==========================================================================
mode                  decided
===================== ==========================================================================
FULL_DUPLEX_STREAMED  when the body is whole: a flagged piece (also an empty one) or trailers
BUFFERED              the head is answered at once, the decision goes out with the body's answer,
                      since the gateway holds the head until then
NONE, STREAMED,       at the head, by load alone: it goes on as soon as it is answered, and in
BUFFERED_PARTIAL,     BUFFERED_PARTIAL a body's answer cannot change headers. STREAMED with
GRPC                  ``send_body_without_waiting_for_header_response`` is no exception: waiting
                      for a body beyond the gateway's buffer would never end
any                   at the head, if that ends the request or asks for an upgrade
===================== ==========================================================================

A gateway that tells no mode (no ``protocol_config``: Envoy before it had the field, and some
that are not Envoy) is taken for full duplex, which the endpoint picker protocol demands, as
soon as a body's piece comes before the head is answered: in no other mode does one. As long as
nothing comes, `Session.guessing` is True, and the server calls `Session.silence` after a moment:
then the gateway waits for the head's answer, and pieces that follow are answered as STREAMED.

**Source:** envoy/service/ext_proc/v3/external_processor.proto, processing_mode.proto;
Gateway API Inference Extension, proposal 004.
"""

from __future__ import annotations

from collections.abc import Callable

from epp.errors import EppError, TooLarge
from epp.extproc.answers import ErrorFormat, answer
from epp.extproc.budget import BodyBudget
from epp.extproc.heads import controls, decide, settable, upgrades
from epp.extproc.messages import (
    NO_HEADERS,
    Body,
    Decision,
    Event,
    ForwardAtOnce,
    ForwardHead,
    ForwardWhole,
    Head,
    Headers,
    Message,
    Mode,
    Modes,
    Part,
    PassBody,
    PassHead,
    PassTrailers,
    Piece,
    Reply,
    RequestReady,
    Side,
    Trailers,
)
from epp.extproc.pieces import pieces
from epp.headers import REQUEST_ID
from epp.model import Arrival, Pick

AT_ONCE_BYTES = 2**20  #: of a body that one reply may hold: a longer one goes in many pieces

_DUPLEX = (Mode.FULL_DUPLEX_STREAMED, Mode.GRPC)
_DECIDED_AT_HEAD = (Mode.NONE, Mode.STREAMED, Mode.BUFFERED_PARTIAL, Mode.GRPC)

_PASS_ANSWER_HEAD = PassHead(Side.RESPONSE)
_PASS_BODY = {side: PassBody(side) for side in Side}
_PASS_TRAILERS = {side: PassTrailers(side) for side in Side}


class Session:
    """The state of one HTTP exchange as the gateway shows it to us.

    Args:
        max_body_bytes: a longer request body is refused, unless it only passes by.
        budget: counts the bytes gathered, over all sessions.
        new_id: makes a request id up.
        error_format: how `reject` words its answer.
        foreign: says of a request's headers that it is none of ours: it goes on as it is.
    """

    __slots__ = (
        "_budget", "_chunks", "_error_format", "_foreign", "_headers", "_held", "_id", "_max_body_bytes",
        "_new_id", "_original", "_replies", "_request_mode", "_subset", "_trailers",
        "finished", "made_id", "request", "response", "response_mode", "spurious", "told",
    )  # fmt: skip

    def __init__(
        self,
        *,
        max_body_bytes: int,
        budget: BodyBudget,
        new_id: Callable[[], str],
        error_format: ErrorFormat = "openai",
        foreign: Callable[[Headers], bool] = lambda headers: False,
    ) -> None:
        self.request = Part.START
        self.response = Part.START
        self.finished = False  #: the client was answered; the stream may close
        self.spurious = 0  #: messages so far that the protocol does not allow where they came
        self.made_id = False  #: the client and the gateway sent no request id
        self._max_body_bytes = max_body_bytes
        self._budget = budget
        self._new_id = new_id
        self._error_format = error_format
        self._foreign = foreign
        self.told: Modes | None = None  #: of the gateway; None if it is old
        self._request_mode: Mode | None = None
        self.response_mode = Mode.FULL_DUPLEX_STREAMED  #: how the answer's body is shown to us
        self._headers: Headers = NO_HEADERS
        self._id = ""
        self._subset: tuple[str, ...] | None = None
        self._chunks: list[bytes] = []
        self._held = 0  #: bytes gathered, taken from the budget
        self._original: bytes | None = None  #: the whole body; None if it was not shown to us
        self._trailers = False  #: trailers, not a flag, ended the request
        self._replies: list[Reply] = []

    @property
    def id(self) -> str:
        """The request's id; '' before its head."""
        return self._id

    @property
    def guessing(self) -> bool:
        """Whether the gateway told no mode and may be waiting for the head's answer."""
        return self._request_mode is None and self.request is Part.COLLECTING

    def unseen(self, *, closed: bool) -> bool:
        """Whether the answer, or the rest of it, goes by without being shown to us.

        Args:
            closed: the gateway closed the stream in order; False if it was cancelled.
        """
        if self.response is Part.ENDED:
            return False
        if self.told is not None:
            # Without a flagged piece: trailers that are not shown to us, or the rest of a body.
            partly = self.told.response in (Mode.STREAMED, Mode.BUFFERED_PARTIAL)
            skipped = partly and self.response is Part.PASSING
            return self.told.response is Mode.NONE or (closed and skipped)
        return closed and self.response is Part.START

    @property
    def told_all(self) -> bool:
        """Whether the request is answered for and no part of the answer's body will be shown.

        Only then may we close the stream: of a full-duplex answer, pieces would be lost.
        """
        told = self.told
        return told is not None and told.response is Mode.NONE and self.request is Part.ENDED

    def receive(self, message: Message) -> Event | None:
        """Take one message from the gateway; return what it means, if it completes anything.

        Raises:
            TooLarge: the request's body is, or will be, over ``max_body_bytes``.
            Overloaded: the picker may not hold that body now.
        """
        if message.modes is not None and self.told is None:
            self.told = message.modes
            self._request_mode = message.modes.request
            self.response_mode = message.modes.response
        if self.finished:
            self.spurious += 1
            return None
        if message.side is Side.REQUEST:
            return self._receive_request(message)
        if isinstance(message, Body):
            return self._answer_body(message)
        if isinstance(message, Head):
            return self._answer_head(message)
        return self._answer_trailers(message)

    def silence(self) -> RequestReady:
        """Decide at the head: the gateway told no mode and sends nothing until it is answered."""
        self._request_mode = self.response_mode = Mode.STREAMED
        self.free()
        return self._ready(hidden=True)

    def accept(self, pick: Pick, body: bytes, *, at_once: bool = False) -> None:
        """Queue what forwards the request to ``pick``.

        Args:
            pick: where it goes.
            body: what to send; only counts where the body was shown to us.
            at_once: the gateway takes head and body in one reply, if it shows us no answer.
        """
        original, self._original = self._original, None
        if original is None:
            self._replies.append(ForwardHead(self._decide(pick)))
            if self.request is Part.ROUTING:
                self.request = Part.PASSING
            return
        self.request = Part.ENDED
        if self._request_mode is Mode.BUFFERED:
            self._accept_buffered(pick, None if body == original else body)
            return
        if at_once and 0 < len(body) <= AT_ONCE_BYTES and self.told_all and not self._trailers:
            self._replies.append(ForwardAtOnce(self._decide(pick), body))
            return
        self._replies.append(ForwardHead(self._decide(pick)))
        self._replies += pieces(Side.REQUEST, body, ends=not self._trailers)
        if self._trailers:
            self._replies.append(_PASS_TRAILERS[Side.REQUEST])

    def reject(self, error: EppError) -> bool:
        """Answer the client with ``error`` and drop whatever was queued.

        Returns:
            False if the response's head has gone on: an answer would corrupt it, and all that
            is left is to break the stream.
        """
        self._replies.clear()
        self.free()
        self.finished = True
        if self.response is not Part.START:
            return False
        self._replies.append(answer(error, self._error_format))
        return True

    def set_on_answer(self, headers: Headers) -> None:
        """Set headers on the response whose head is queued."""
        self._replies[-1] = PassHead(Side.RESPONSE, settable(headers, NO_HEADERS))

    def replies(self) -> list[Reply]:
        """Hand over the replies queued since the last call, in order."""
        replies, self._replies = self._replies, []
        return replies

    def free(self) -> None:
        """Give back what was taken from the budget. Call it when the body was sent; idempotent."""
        self._chunks.clear()
        self._original = None
        self._budget.give_back(self._held)
        self._held = 0

    # --- the request -----------------------------------------------------------------

    def _receive_request(self, message: Message) -> RequestReady | None:
        if type(message) is Head:
            self._subset = message.subset
            return self._request_head(message)
        if message.subset is not None:
            self._subset = message.subset
        if type(message) is Body:
            return self._request_body(message)
        return self._request_trailers()

    def _request_head(self, head: Head) -> RequestReady | None:
        if self.request is not Part.START:
            self.spurious += 1
            self._replies.append(PassHead(Side.REQUEST))
            return None
        headers = self._headers = head.headers
        if self._foreign(headers):
            self.request = Part.ENDED if head.ends else Part.PASSING
            self._replies.append(PassHead(Side.REQUEST, remove=controls(headers)))
            return None
        self._id = headers.get(REQUEST_ID, "")
        if not self._id:
            self._id = self._new_id()
            self.made_id = True
        if head.ends:
            self.request = Part.ENDED
            return self._ready(hidden=False)
        if self._request_mode in _DECIDED_AT_HEAD or upgrades(headers):
            return self._ready(hidden=True)
        self.request = Part.COLLECTING
        self._expect(headers.get("content-length", ""))
        if self._request_mode is Mode.BUFFERED:
            self._replies.append(PassHead(Side.REQUEST, remove=controls(headers)))
        return None

    def _request_body(self, body: Body) -> RequestReady | None:
        if self.request is Part.COLLECTING:
            if self._request_mode is None:
                self._request_mode = Mode.FULL_DUPLEX_STREAMED
            self._gather(body.data)
            if body.ends or self._request_mode is Mode.BUFFERED:
                return self._ready_with_body()
            return None
        if self.request is Part.START:  # request heads are not shown to us: nothing to decide
            self.spurious += 1
            self.request = Part.PASSING
        if self.request is Part.PASSING:
            self._pass(body, self._request_mode)
            if body.ends:
                self.request = Part.ENDED
            return None
        # Envoy 1.35+ may deliver the last piece of a large body twice (envoyproxy/envoy#46237).
        self.spurious += 1
        if self._request_mode not in _DUPLEX:
            self._replies.append(_PASS_BODY[Side.REQUEST])
        return None

    def _request_trailers(self) -> RequestReady | None:
        if self.request is Part.COLLECTING:
            self._trailers = True
            return self._ready_with_body()
        self.request = Part.ENDED
        self._replies.append(_PASS_TRAILERS[Side.REQUEST])
        return None

    def _ready_with_body(self) -> RequestReady:
        chunks = self._chunks
        self._original = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        self._chunks = []
        return self._ready(hidden=False)

    def _ready(self, *, hidden: bool) -> RequestReady:
        if self.request is not Part.ENDED:
            self.request = Part.ROUTING
        told = (self._id, self._headers, self._original or b"", self._subset, hidden)
        return RequestReady(Arrival(*told, None, self._request_mode in _DUPLEX))

    def _expect(self, content_length: str) -> None:
        """Refuse a body by its announced length, before a byte of it was sent."""
        if not content_length.isdecimal():
            return
        size = int(content_length[:20])
        self._check_size(size)
        self._budget.check(size)

    def _gather(self, data: bytes) -> None:
        self._check_size(self._held + len(data))
        self._budget.take(len(data))
        self._held += len(data)
        self._chunks.append(data)

    def _check_size(self, size: int) -> None:
        if size > self._max_body_bytes:
            raise TooLarge(f"the request body is over {self._max_body_bytes} bytes")

    def _accept_buffered(self, pick: Pick, changed: bytes | None) -> None:
        if self._trailers:  # no body was shown, and the head's answer is long out
            self._replies.append(PassTrailers(Side.REQUEST, self._decide(pick)))
            return
        length = None if changed is None else len(changed)
        self._replies.append(ForwardWhole(self._decide(pick, length), changed))

    def _decide(self, pick: Pick, length: int | None = None) -> Decision:
        own = {REQUEST_ID: self._id} if self.made_id else {}
        if length is not None:
            own["content-length"] = str(length)
        return decide(pick, self._headers, own)

    # --- the response ----------------------------------------------------------------

    def _answer_head(self, head: Head) -> Head | None:
        if self.request in (Part.COLLECTING, Part.ROUTING):
            # The gateway answers by itself, say with a time-out: the request goes nowhere.
            self.request = Part.ENDED
            self.free()
        if self.response is not Part.START:
            self.spurious += 1
            self._replies.append(_PASS_ANSWER_HEAD)
            return None
        self.response = Part.ENDED if head.ends else Part.PASSING
        self._replies.append(_PASS_ANSWER_HEAD)
        return head

    def _answer_body(self, body: Body) -> Body | None:
        mode = self.response_mode
        if self.response is Part.ENDED:
            self.spurious += 1
            if mode not in _DUPLEX:
                self._replies.append(_PASS_BODY[Side.RESPONSE])
            return None
        self._pass(body, mode)
        whole = body.ends or mode is Mode.BUFFERED
        self.response = Part.ENDED if whole else Part.PASSING
        return body

    def _answer_trailers(self, trailers: Trailers) -> Trailers:
        self.response = Part.ENDED
        self._replies.append(_PASS_TRAILERS[Side.RESPONSE])
        return trailers

    # --- either ----------------------------------------------------------------------

    def _pass(self, body: Body, mode: Mode | None) -> None:
        """Pass a piece on at once, untouched."""
        if mode is None or mode in _DUPLEX:
            self._replies += pieces(body.side, body.data, ends=body.ends) or [
                Piece(body.side, b"", ends=False)
            ]
        else:
            self._replies.append(_PASS_BODY[body.side])
