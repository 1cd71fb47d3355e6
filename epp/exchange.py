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
from epp.model import Ending, InferenceRequest, Outcome, Pick, Usage
from epp.plugin import Observer

OnError = Callable[[Observer, Exception], None]  #: told of an observer that raised


class Exchange:
    """A routed request and its answer."""

    __slots__ = (
        "_clock", "_first_byte_at", "_observers", "_on_error", "_reservations", "_status",
        "_streamed", "attempts", "ended", "flags", "pick", "picked_at", "request",
        "response_bytes", "served", "tail", "usage",
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
    ) -> None:
        self.request = request
        self.pick = pick
        self.ended = False
        self.served = ""  #: ``host:port`` that served, as the gateway says
        self.usage: Usage | None = None
        self.attempts: int | None = None  #: endpoints tried, as the gateway says
        self.flags = ""  #: why the gateway cut it off
        self.tail: Tail | None = None  #: the end of the answer, where it passes through us
        self.picked_at = clock.now()
        self._observers = observers
        self._reservations = reservations
        self._clock = clock
        self._on_error = on_error
        self._status: int | None = None
        self._first_byte_at: float | None = None
        self.response_bytes: int | None = None  #: of the body, as far as seen
        self._streamed = False

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

    def forwarded(self) -> None:
        """The request is on its way: let go of its body and prompt, which may be megabytes."""
        self.request = msgspec.structs.replace(self.request, body=b"", prompt=b"")

    def response_head(self, status: int | None, *, streamed: bool, served: str = "") -> None:
        """Note the response's head. ``streamed``: it is an event stream."""
        self._status = status
        self._streamed = streamed
        self.response_bytes = 0
        self.served = served or self.served

    def response_piece(self, size: int) -> None:
        """Note ``size`` bytes of the response's body. The first one ends the prefill."""
        if size and self._first_byte_at is None:
            self._first_byte_at = self._clock.now()
            for reservation in self._reservations:
                reservation.release_tokens()
        self.response_bytes = (self.response_bytes or 0) + size

    def response_data(self, data: bytes) -> None:
        """Keep the end of the answer, which tells the usage. 0.2 us a piece; nothing is parsed."""
        if self.tail is None:
            self.tail = Tail()
        self.tail.feed(data)

    def release(self) -> None:
        """Give its bookings back while the answer goes on: the scraped load counts it."""
        for reservation in self._reservations:
            reservation.release()

    def complete(self) -> None:
        """The response is whole."""
        failed = self._status is not None and self._status >= 400
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
            at=self._clock.now(),
            status=self._status if status is None else status,
            served=served or self.served,
            first_byte_at=self._first_byte_at,
            response_bytes=self.response_bytes,
            streamed=self._streamed,
            usage=self.usage,
            picked_at=self.picked_at,
            attempts=self.attempts,
            flags=self.flags,
        )
        for observer in self._observers:
            try:
                observer.ended(self.request, self.pick, ending)
            except Exception as error:  # noqa: BLE001 - an observer never breaks traffic
                self._on_error(observer, error)
