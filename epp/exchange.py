"""One routed request until its answer ends, told to the observers as it happens.

An exchange ends by what is seen first: its response streamed through us, an access-log entry,
the stream's end without either, or the reaper. Whichever comes first calls `end`; later calls
do nothing, so observers hear exactly one end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from epp.clock import Clock
from epp.formats.usage import Tail
from epp.ledger import Reservation
from epp.model import Ending, Endpoint, InferenceRequest, Outcome, Pick, PrefillLeg, Usage
from epp.plugin import Observer

TIMEOUT = "timeout"  #: `PrefillLeg.reason` of an endpoint that may still compute
Book = Callable[[InferenceRequest, Endpoint], Reservation]
"""Books a request on an endpoint that serves it in the place of another."""
OnError = Callable[[Observer, Exception], None]  #: told of an observer that raised


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What the gateway says about an answer that went by without us.

    Seconds count from the moment the gateway had the whole request, which is when it arrived here.
    """

    response_bytes: int | None = None
    usage: Usage | None = None
    first_byte_seconds: float | None = None  #: until the answer's first byte
    seconds: float | None = None  #: until the answer was over
    streamed: bool = False  #: it was an event stream
    attempts: int | None = None  #: endpoints tried
    flags: str = ""  #: why the gateway cut it off, its own words with commas


def decoded(request: InferenceRequest) -> InferenceRequest:
    """Return the request as an endpoint sees it that does not compute its prompt."""
    return msgspec.structs.replace(request, computed=False)


class Exchange:
    """A routed request and its answer."""

    __slots__ = (
        "_book", "_clock", "_ended_at", "_first_byte_at", "_observers", "_on_error",
        "_reservations", "attempts", "book_prefill", "broken", "ended", "flags", "leg", "name", "pick", "picked_at",
        "released", "request", "response_bytes", "sent", "served", "status", "streamed", "tail", "usage",
    )  # fmt: skip

    def __init__(
        self,
        request: InferenceRequest,
        pick: Pick,
        observers: Sequence[Observer],
        reservations: Sequence[Reservation],
        *,
        clock: Clock,
        on_error: OnError,
        book: Book | None = None,
    ) -> None:
        self.request = request
        self.pick = pick
        self.sent = pick  #: what the gateway is told of it
        self.leg: PrefillLeg | None = None  #: what became of a prefill that we ran elsewhere
        self.name = ""  #: what the gateway's access log may call it
        self.ended = False
        self.released = False  #: its bookings were given back
        self.broken = False  #: its answer broke off
        self.served = ""  #: ``host:port`` that served, as the gateway says
        self.usage: Usage | None = None
        self.attempts: int | None = None  #: endpoints tried, as the gateway says
        self.flags = ""  #: why the gateway cut it off
        self.tail: Tail | None = None  #: the end of the answer, where it passes through us
        self.picked_at = clock.now()
        self._observers = observers
        self._reservations = reservations  #: of the endpoint that decodes; then that of a prefill
        self._clock = clock
        self._on_error = on_error
        self._book = book
        self.book_prefill: Book | None = None  #: books a prefill; set by who runs it
        self._ended_at: float | None = None
        self.status: int | None = None  #: of the answer, as far as seen
        self._first_byte_at: float | None = None
        self.response_bytes: int | None = None  #: of the body, as far as seen
        self.streamed = False  #: the answer is an event stream, as far as seen

    def open(self) -> None:
        """Begin: the request is about to be forwarded."""
        for observer in self._observers:
            try:
                observer.picked(self.request, self.pick)
            except Exception as error:  # noqa: BLE001 - an observer never breaks traffic
                self._on_error(observer, error)

    def listen(self, observer: Observer) -> None:
        """Have one more observer hear how it ends."""
        self._observers = (*self._observers, observer)

    def prefill_at(self, endpoint: Endpoint) -> None:
        """See `plugin.Legs.prefill_at`."""
        if self.book_prefill is not None and not self.ended:
            first, *old = self._reservations
            self._reservations = (first, self.book_prefill(self.request, endpoint))
            for reservation in old:
                reservation.release()

    def prefilled(self, leg: PrefillLeg) -> None:
        """See `plugin.Legs.prefilled`. What may still be computed stays booked."""
        self.leg = leg
        if leg.seconds is not None and leg.reason != TIMEOUT:
            for prefill in self._reservations[1:]:
                prefill.end_leg()
        if leg.endpoint is None and self._book is not None and not self.ended:
            first, *rest = self._reservations
            first.release()
            self._reservations = (self._book(self.request, self.pick.endpoints[0]), *rest)

    def send(self, body: bytes, pick: Pick) -> None:
        """Forward another body, and tell the gateway another pick, than was decided on."""
        self.request = msgspec.structs.replace(self.request, body=body, model_span=None)
        self.sent = pick

    def forwarded(self) -> None:
        """The request is on its way: let go of its body and prompt, which may be megabytes."""
        self.request = msgspec.structs.replace(self.request, body=b"", prompt=b"")

    def response_head(self, status: int | None, *, streamed: bool, served: str = "") -> None:
        """Note the response's head. ``streamed``: it is an event stream."""
        self.status = status
        self.streamed = streamed
        self.response_bytes = 0
        self.served = served or self.served
        self._follow()

    def told(self, told: Told) -> None:
        """Take the gateway's word on an answer that went by without us."""
        now, arrived_at = self._clock.now(), self.request.arrived_at
        if told.first_byte_seconds is not None:
            first = max(arrived_at + told.first_byte_seconds, self.picked_at)
            self._first_byte_at = min(first, now)
        if told.seconds is not None:
            self._ended_at = min(max(arrived_at + told.seconds, self.picked_at), now)
        if told.usage is not None:
            self.usage = told.usage
        if told.response_bytes is not None:
            self.response_bytes = told.response_bytes
        self.streamed |= told.streamed
        self.attempts = told.attempts
        self.flags = told.flags

    @property
    def _alone(self) -> bool:
        """The endpoint that decodes computes the prompt, too."""
        return self.pick.prefill is None or (self.leg is not None and self.leg.endpoint is None)

    def _follow(self) -> None:
        """Move the booking to the fallback that serves, if the first choice does not."""
        if self._book is None or self.served in ("", self.pick.endpoints[0].address):
            return
        for endpoint in self.pick.endpoints[1:]:
            if endpoint.address == self.served:
                self._reservations[0].release()
                request = self.request if self._alone else decoded(self.request)
                self._reservations = (self._book(request, endpoint), *self._reservations[1:])
                self._book = None  # once: a later head, of an upgrade, changes nothing
                return

    def response_piece(self, size: int) -> None:
        """Note ``size`` bytes of the response's body. The first one ends the prefill."""
        if size and self._first_byte_at is None:
            self._first_byte_at = self._clock.now()
            self._reservations[0].release_tokens()
            for prefill in self._reservations[1:]:
                prefill.release()  # it was done before: who ran it tells nobody when
        self.response_bytes = (self.response_bytes or 0) + size

    def response_data(self, data: bytes) -> None:
        """Keep the end of the answer, which tells the usage. 0.2 us a piece; nothing is parsed."""
        if self.tail is None:
            self.tail = Tail()
        self.tail.feed(data)

    def release(self) -> None:
        """Give its bookings back while the answer goes on: the scraped load counts it."""
        self.released = True
        for reservation in self._reservations:
            reservation.release()

    def break_off(self) -> None:
        """Its stream broke, so that it is over: the gateway may still say at whose end."""
        self.broken = True
        self._ended_at = self._clock.now()
        self.release()

    def complete(self) -> None:
        """The response is whole."""
        failed = self.status is not None and self.status >= 400
        self.end(Outcome.FAILED if failed else Outcome.COMPLETED)

    def end(self, outcome: Outcome, *, status: int | None = None, served: str = "") -> None:
        """End the exchange. Only the first call counts."""
        if self.ended:
            return
        self.ended = True
        if self.usage is None and self.tail is not None:
            self.usage = self.tail.usage()
        self.tail = None
        self.release()
        ending = Ending(
            outcome=outcome,
            at=self._clock.now() if self._ended_at is None else self._ended_at,
            status=self.status if status is None else status,
            served=served or self.served,
            first_byte_at=self._first_byte_at,
            response_bytes=self.response_bytes,
            streamed=self.streamed,
            usage=self.usage,
            picked_at=self.picked_at,
            attempts=self.attempts,
            flags=self.flags,
            leg=self.leg,
        )
        for observer in self._observers:
            try:
                observer.ended(self.request, self.pick, ending)
            except Exception as error:  # noqa: BLE001 - an observer never breaks traffic
                self._on_error(observer, error)
