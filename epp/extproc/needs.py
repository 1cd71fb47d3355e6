"""What the ext_proc service needs of the rest of the picker, as protocols."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from epp.errors import EppError
from epp.exchange import Exchange
from epp.model import Arrival, InferenceRequest, Pick

AnswerHeaders = Callable[[Exchange], Mapping[str, str]]  #: headers to set on an exchange's answer
Metadata = Mapping[str, Mapping[str, float]]  #: numbers by namespace, then by name
AnswerMetadata = Callable[[Exchange], Metadata]  #: what to tell the gateway of a whole answer
OnAnswerPiece = Callable[[Exchange, bytes], None]  #: told every piece of an exchange's answer


class Routes(Protocol):
    """What the service needs of `router.Router`."""

    async def route(self, arrival: Arrival) -> Exchange:
        """Choose an endpoint and book it.

        Raises:
            EppError: the request must be answered with an error instead.
        """
        ...


class Unseen(Protocol):
    """Keeps exchanges whose answer goes by without us (see `feedback.unseen`)."""

    @property
    def logs_connected(self) -> int:
        """Access logs that tell how exchanges ended."""
        ...

    @property
    def asks_why(self) -> bool:
        """Whether somebody may still tell at whose end an answer broke off that we saw begin."""
        ...

    def name(self, exchange: Exchange) -> str:
        """Name ``exchange``: the access log may speak of it by that."""
        ...

    def adopt(self, exchange: Exchange) -> None:
        """Keep ``exchange`` open until something tells how it ended."""
        ...


class Counters:
    """What the service counts; this one counts nothing. Overwrite what is of interest."""

    def stream_started(self) -> None:
        """A stream opened."""

    def stream_ended(self) -> None:
        """It ended, however."""

    def refused(self, error: EppError) -> None:
        """A request was answered with an error; ``error.reason`` and ``error.status`` say which."""

    def spurious(self, count: int) -> None:
        """A stream brought ``count`` messages that the protocol does not allow there."""


class Tracing(Protocol):
    """Traces streams (see `telemetry.tracing`); each call is made in the stream's own task."""

    def began(self, headers: Mapping[str, str]) -> None:
        """A request's head came."""
        ...

    def routed(self, exchange: Exchange) -> Pick:
        """The request was routed; return its pick with what is to be told upstream."""
        ...

    def refused(self, error: EppError) -> None:
        """The request was answered with an error."""
        ...

    def closed(self) -> None:
        """The stream is over."""
        ...


class AnswerTimes(Protocol):
    """Takes durations in seconds; see `telemetry.metrics.Metrics`."""

    def gap(self, request: InferenceRequest, seconds: float) -> None:
        """Two pieces of an event stream were this far apart."""
        ...

    def answered(self, seconds: float) -> None:
        """Our own work on an event stream; of any other answer, from its head to its end."""
        ...


class Desk(Protocol):
    """Where a request is dealt with: all that differs from pool to pool."""

    @property
    def router(self) -> Routes:
        """Decides."""
        ...

    @property
    def counters(self) -> Counters:
        """Is told of refusals."""
        ...

    @property
    def answer_headers(self) -> AnswerHeaders | None:
        """Headers to set on an answer; None sets none."""
        ...

    @property
    def answer_metadata(self) -> AnswerMetadata | None:
        """Asked once an answer is whole."""
        ...

    @property
    def times(self) -> AnswerTimes | None:
        """Told what answers take, of those that are measured."""
        ...


Choose = Callable[[bytes, Any, int], Desk]
"""Chooses the desk of a request by its stream's first message as it came, the gRPC context, and the
port, 0 for the one that all pools share; may raise an `EppError`."""
