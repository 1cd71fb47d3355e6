"""Follows one picker at one address, again and again until cancelled."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable

import grpc
import grpc.aio

from epp.kube.pace import Backoff
from epp.peers import wire
from epp.peers.circle import Circle, Met
from epp.peers.places import Place

SILENT_SECONDS = 3.0  #: without a word, after which a picker is lost
BACKOFF = Backoff(first=0.25, limit=5.0)  #: after failures
OTHERWISE_SECONDS = 5.0  #: until a picker that did not tell for a reason is asked again
STEADY_SECONDS = 5.0  #: of hearing, which end a row of failures

log = logging.getLogger(__name__)


class Declined(Exception):
    """It tells nothing, for a reason that may pass.

    Args:
        why: as it says.
        usual: it is heard by another address, or is this very picker.
    """

    def __init__(self, why: str, *, usual: bool = True) -> None:
        super().__init__(why)
        self.usual = usual


DECLINES = frozenset({
    grpc.StatusCode.NOT_FOUND,  # it does not serve the pool, or not yet
    grpc.StatusCode.ALREADY_EXISTS,  # it is heard by another address, or is this very picker
    grpc.StatusCode.UNIMPLEMENTED,  # it is something else
})  # fmt: skip


class Link:
    """One circle's way to one address.

    Args:
        circle: takes in what is heard.
        place: where the picker is.
        draw: uniform in [0, 1), for pauses.
    """

    def __init__(
        self, circle: Circle, place: Place, draw: Callable[[], float] = random.random
    ) -> None:
        self._circle = circle
        self._place = place
        self._draw = draw

    async def run(self) -> None:
        """Follow until cancelled."""
        failures, loop = 0, asyncio.get_running_loop()
        while True:
            begun = loop.time()
            try:
                why = await self._listen()
            except Declined as error:
                self._place.declined(str(error), usual=error.usual)
                await asyncio.sleep(OTHERWISE_SECONDS * (0.5 + self._draw() / 2))
                continue
            failures = 1 if loop.time() - begun >= STEADY_SECONDS else failures + 1
            self._place.failed(why)
            await asyncio.sleep(BACKOFF.pause(failures, self._draw()))

    async def _listen(self) -> str:
        """Hear a picker until it is lost; return why.

        Raises:
            Declined: it tells nothing.
        """
        channel: grpc.aio.Channel | None = None
        try:
            channel = await self._place.channel()
            call = channel.unary_stream(wire.FOLLOW)(wire.pack_request(self._circle.asking()))
            return await self._hear(call)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            return "its channel was closed"  # gRPC says so as if we had been cancelled
        except TimeoutError:
            if channel is not None:
                await self._place.leave(channel)
            return f"silent for {SILENT_SECONDS:g} s"
        except grpc.aio.AioRpcError as error:
            if error.code() in DECLINES:
                usual = error.code() is grpc.StatusCode.ALREADY_EXISTS
                raise Declined(f"{error.code().name}: {error.details()}", usual=usual) from error
            return f"{error.code().name}: {error.details()}"
        except (OSError, ValueError) as error:
            return f"{type(error).__name__}: {error}"

    async def _hear(self, call: grpc.aio.UnaryStreamCall[bytes, bytes]) -> str:
        met: Met | None = None
        instance = ""
        try:
            while True:
                async with asyncio.timeout(SILENT_SECONDS):
                    data = await call.read()
                if data is grpc.aio.EOF:
                    return "it ended"
                news = wire.unpack(data)
                if met is None:
                    instance = news.instance
                    met = self._circle.meet(instance, self._place.address)
                    if met is None:
                        raise Declined("it is heard already")
                    self._place.met(instance)
                elif news.instance != instance:
                    raise ValueError("another picker's news")
                await self._circle.hear(met, news, len(data))
        finally:
            call.cancel()
            if met is not None:
                self._circle.part(instance)
                self._place.parted()
