"""What streams cost and how long they live, measured where it is asked for or by samples.

A clock reading and a histogram for every piece of every answer would be a good part of what a
piece costs, so that one stream of `EVERY` is a `MeasuredStream`; the others pay nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Protocol

from epp.clock import Clock
from epp.extproc.needs import AnswerTimes
from epp.extproc.server import Around, ExtProcService, Stream
from epp.rpc.call import Call
from epp.rpc.connection import Method
from epp.rpc.status import Aborted, Code

EVERY = 16


class Times(AnswerTimes, Protocol):
    """Takes how streams end, too."""

    def stream_closed(self, code: str, seconds: float) -> None:
        """A stream ended with this gRPC status after so long."""
        ...


class MeasuredStream(Stream):
    """A stream that says what its answer took, once it is whole."""

    __slots__ = ("_bytes", "_handled", "_head_at", "_now", "_piece_at", "_told")

    def __init__(self, service: ExtProcService, call: Call, *, clock: Clock) -> None:
        super().__init__(service, call)
        self._now = clock.now
        self._handled = 0.0  #: seconds spent on the answer
        self._head_at: float | None = None
        self._piece_at: float | None = None  #: when the last piece came
        self._bytes = 0
        self._told = False

    async def _step(self, data: bytes | None) -> None:
        began = self._now()
        await super()._step(data)
        exchange = self._exchange
        if exchange is None or exchange.response_bytes is None or self._told:
            return  # the answer has not begun, or is over
        if self._head_at is None:
            self._head_at = began
        if exchange.response_bytes > self._bytes:
            self._piece(began, exchange.response_bytes)
        done = self._now()
        self._handled += done - began
        if exchange.ended:
            self._told = True
            if (times := self._desk.times) is not None:
                times.answered(self._handled if exchange.streamed else done - self._head_at)

    def _piece(self, came_at: float, size: int) -> None:
        exchange, times, self._bytes = self._exchange, self._desk.times, size
        before, self._piece_at = self._piece_at, came_at
        if times is None or exchange is None or before is None or not exchange.streamed:
            return
        times.gap(exchange.request, max(came_at - before, 0.0))


def measure(service: ExtProcService, times: Times, clock: Clock, *, lives: bool) -> None:
    """Measure some answers of ``service``, and with ``lives`` all its streams."""
    service.times = times
    service.open_stream = sampled(clock)
    if lives:
        service.around = timed(times.stream_closed, clock)


def sampled(clock: Clock) -> Callable[[ExtProcService, Call], Stream]:
    """Return what opens streams: the first of `EVERY` is measured."""
    turns = count()

    def open_stream(service: ExtProcService, call: Call) -> Stream:
        if next(turns) % EVERY:
            return Stream(service, call)
        return MeasuredStream(service, call, clock=clock)

    return open_stream


def timed(closed: Callable[[str, float], None], clock: Clock) -> Around:
    """Return what tells each stream's gRPC status and seconds to ``closed``.

    A reset between two messages may be read as the stream's end, and is ``OK`` then.
    """

    def around(process: Method) -> Method:
        async def measured(call: Call) -> None:
            began, code = clock.now(), "OK"
            try:
                await process(call)
            except asyncio.CancelledError:
                code = "Canceled"
                raise
            except Aborted as error:
                code = _name(error.code)
                raise
            except BaseException:
                code = "Unknown"
                raise
            finally:
                closed(code, clock.now() - began)

        return measured

    return around


def _name(code: Code) -> str:
    """A status as Go spells it: ``DeadlineExceeded``."""
    return "".join(word.capitalize() for word in code.name.split("_"))
