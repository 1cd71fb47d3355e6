"""What a session hears and says: ext_proc messages as plain nouns, without protobuf.

`wire` translates them, `session` gives them their order. They are msgspec structs without
cycle collection: several are made per request.

**Source:** envoy/service/ext_proc/v3/external_processor.proto and
envoy/extensions/filters/http/ext_proc/v3/processing_mode.proto.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, IntEnum, auto

import msgspec

from epp.model import Arrival

Headers = Mapping[str, str]
"""Lower-case names. Values are UTF-8; bytes that are not are kept as surrogates
(``surrogateescape``), so that every value goes back out as the bytes it came in as."""

NO_HEADERS: Headers = {}


class Side(Enum):
    """Which half of the HTTP exchange a message belongs to."""

    REQUEST = "request"
    RESPONSE = "response"


class Mode(IntEnum):
    """How the gateway shows us a body; values of ``ProcessingMode.BodySendMode``."""

    NONE = 0  #: not at all
    STREAMED = 1  #: in pieces; the head has gone on before
    BUFFERED = 2  #: whole, in one message; the head is still held
    BUFFERED_PARTIAL = 3  #: the first part of it, in one message
    FULL_DUPLEX_STREAMED = 4  #: in pieces; head and pieces go on when, and as, we say
    GRPC = 5  #: one gRPC message at a time, otherwise as FULL_DUPLEX_STREAMED


class Part(Enum):
    """How far one side has come."""

    START = auto()  #: nothing seen
    COLLECTING = auto()  #: request only: its body is being gathered
    ROUTING = auto()  #: request only: our own decision; the gateway waits for us
    PASSING = auto()  #: pieces go on as they come
    ENDED = auto()  #: nothing more is expected


class Modes(msgspec.Struct, frozen=True, gc=False):
    """``protocol_config`` of a stream's first message."""

    request: Mode
    response: Mode


# --- from the gateway --------------------------------------------------------------


class Head(msgspec.Struct, frozen=True, gc=False):
    """A request's or a response's headers."""

    side: Side
    headers: Headers
    ends: bool = False  #: no body and no trailers will follow
    subset: tuple[str, ...] | None = None  #: the subset hint; None if the message has none
    served: str = ""  #: ``host:port`` that served; on a response only
    modes: Modes | None = None  #: on a stream's first message, unless the gateway is old


class Body(msgspec.Struct, frozen=True, gc=False):
    """A piece of a body."""

    side: Side
    data: bytes
    ends: bool = False  #: the last piece, and no trailers will follow
    subset: tuple[str, ...] | None = None
    modes: Modes | None = None


class Trailers(msgspec.Struct, frozen=True, gc=False):
    """Trailers; they end the body."""

    side: Side
    subset: tuple[str, ...] | None = None
    modes: Modes | None = None


class RequestReady(msgspec.Struct, frozen=True, gc=False):
    """The request can be decided. Answer with `Session.accept` or `Session.reject`."""

    arrival: Arrival


Message = Head | Body | Trailers
Event = RequestReady | Head | Body | Trailers
"""What a message means. A `Head`, `Body` or `Trailers` is a part of the response, seen once."""

# --- to the gateway ----------------------------------------------------------------


class Decision(msgspec.Struct, frozen=True, gc=False):
    """What the pick changes on the request's head."""

    destination: str
    set: Mapping[str, str] = NO_HEADERS  #: the destination's header included
    remove: tuple[str, ...] = ()
    scores: Mapping[str, float] | None = None  #: by address; None sends none


class PassHead(msgspec.Struct, frozen=True, gc=False):
    """Pass a head on, with a few headers set or removed, without a decision."""

    side: Side
    set: Mapping[str, str] = NO_HEADERS
    remove: tuple[str, ...] = ()


class ForwardHead(msgspec.Struct, frozen=True, gc=False):
    """Send the request's head to the decision's destination."""

    decision: Decision


class Piece(msgspec.Struct, frozen=True, gc=False):
    """Pass these bytes on (full duplex: a streamed reply)."""

    side: Side
    data: bytes
    ends: bool


class PassBody(msgspec.Struct, frozen=True, gc=False):
    """Pass the piece that we were shown on as it is (any mode but full duplex)."""

    side: Side


class ForwardWhole(msgspec.Struct, frozen=True, gc=False):
    """Send head and whole body to the decision's destination (mode BUFFERED)."""

    decision: Decision
    data: bytes | None = None  #: the body to send in place of the one shown; None keeps it


class ForwardAtOnce(msgspec.Struct, frozen=True, gc=False):
    """Send the decision and the whole body in the one answer to the head (full duplex).

    Nothing more of the request is shown to us after it.
    """

    decision: Decision
    data: bytes


class PassTrailers(msgspec.Struct, frozen=True, gc=False):
    """Pass trailers on as they are."""

    side: Side
    decision: Decision | None = None  #: made this late, it can only go out as metadata


class Answer(msgspec.Struct, frozen=True, gc=False):
    """Answer the client now; nothing is passed on."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Reporting(msgspec.Struct, frozen=True, gc=False):
    """A reply that tells the gateway numbers about the exchange besides."""

    reply: PassHead | Piece | PassBody | PassTrailers
    metadata: Mapping[str, Mapping[str, float]]  #: by namespace, then by name


class Named(msgspec.Struct, frozen=True, gc=False):
    """A reply that tells the gateway besides what its access log is to call the exchange."""

    reply: ForwardHead | ForwardAtOnce | ForwardWhole | PassTrailers
    name: str  #: ASCII, below 100 characters


Reply = (
    Named
    | Reporting
    | PassHead
    | ForwardHead
    | Piece
    | PassBody
    | ForwardWhole
    | ForwardAtOnce
    | PassTrailers
    | Answer
)
