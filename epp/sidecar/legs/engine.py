"""The engine's leg: the request goes to the engine next door, and its answer back as it comes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import aiohttp
import msgspec
from aiohttp import web

from epp.sidecar import answers
from epp.sidecar.head import Address, backward
from epp.sidecar.legs.asked import Asked, Refused
from epp.sidecar.legs.beginning import Beginning, begins
from epp.sidecar.legs.outbound import Outbound
from epp.sidecar.legs.trust import Sent, Trust, salted
from epp.sidecar.metrics import Metrics

PROBE_PATH = "/v1/completions"
_BODILESS = (204, 304)


class _Broken(Exception):
    """The engine did not finish its answer."""


class Opened(msgspec.Struct):
    """An answer whose first bytes have come."""

    answer: aiohttp.ClientResponse
    first: bytes  #: b"" of an answer without a body
    sent: Sent

    @property
    def streams(self) -> bool:
        """Whether it is a stream of events."""
        return self.answer.content_type == "text/event-stream"

    async def proven(self) -> bool:
        """Read on until the first token has come; False if the engine says or shows that it failed.

        What was read is in `first`: the client has seen nothing yet.
        """
        if self.answer.status >= 500:
            return False
        if not self.streams or "content-encoding" in self.answer.headers:
            return True
        while (beginning := begins(self.first)) is Beginning.OPEN:
            try:
                piece = await self.answer.content.readany()
            except (aiohttp.ClientError, OSError, TimeoutError):
                return False
            if not piece:
                return False
            self.first += piece
        return beginning is Beginning.GOOD


class Engine:
    """One rank of the engine behind the sidecar."""

    def __init__(self, outbound: Outbound, address: Address, *, metrics: Metrics) -> None:
        self.address = address
        self._outbound = outbound
        self._metrics = metrics
        self.trust = Trust(self._answers, metrics)

    @contextlib.asynccontextmanager
    async def opened(
        self, asked: Asked, body: object, *, method: str = "POST"
    ) -> AsyncIterator[Opened]:
        """Ask; the answer is there when its first bytes are. Leaving early aborts the request.

        Raises:
            Refused: the engine does not listen, or does not answer.
        """
        sent = self.trust.sent()
        if sent.salt and isinstance(body, bytes):
            body = salted(body, sent.salt)
        call = self._outbound.request(
            "decoder", self.address, asked.path, method=method, head=asked.head, body=body
        )
        async with contextlib.AsyncExitStack() as stack:
            try:
                answer = await stack.enter_async_context(call)
                first = await answer.content.readany()
            except (aiohttp.ClientConnectorError, aiohttp.ServerDisconnectedError) as error:
                if isinstance(getattr(error, "os_error", None), ConnectionRefusedError):
                    self.trust.renew()
                raise Refused(503, answers.NOT_READY, "engine-down") from None
            except TimeoutError:
                raise Refused(504, "The engine does not answer.", "engine-silent") from None
            except (aiohttp.ClientError, OSError):
                raise Refused(502, "The engine's answer ended early.", "engine-broken") from None
            self._metrics.first_byte_seconds.observe(asyncio.get_running_loop().time() - sent.at)
            yield Opened(answer, first, sent)

    async def give_up(self, told: tuple[str, bytes]) -> None:
        """Tell the engine to abort a request that waits for a prefill; failures do not matter."""
        path, body = told
        head = [("content-type", "application/json")]
        call = self._outbound.request("decoder", self.address, path, head=head, body=body)
        with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
            async with asyncio.timeout(2.0), call as answer:
                await answer.read()

    async def _answers(self, model: msgspec.Raw) -> None:
        """Have one token made; any other end than a time-out says that nothing hangs."""
        body = b'{"model":%b,"prompt":"a","max_tokens":1}' % bytes(model)
        head = [("content-type", "application/json")]
        call = self._outbound.request("decoder", self.address, PROBE_PATH, head=head, body=body)
        try:
            async with call as answer:
                await answer.read()
        except TimeoutError:
            raise
        except (aiohttp.ClientError, OSError):
            return

    async def healthy(self) -> int:
        """Return the status of the engine's own health; 503 if it does not answer."""
        call = self._outbound.request("decoder", self.address, "/health", method="GET")
        try:
            async with asyncio.timeout(2.0), call as answer:
                await answer.read()
                return answer.status
        except (aiohttp.ClientError, OSError, TimeoutError):
            return 503

    async def relay(self, request: web.Request, opened: Opened) -> web.StreamResponse:
        """Send an answer on, each piece when it comes."""
        answer = opened.answer
        response = web.StreamResponse(status=answer.status, reason=answer.reason)
        for name, value in backward(answer.headers.items()):
            response.headers.add(name, value)
        has_body = request.method != "HEAD" and answer.status not in _BODILESS
        if has_body and "content-length" not in answer.headers and request.version >= (1, 1):
            response.enable_chunked_encoding()
        try:
            await response.prepare(request)
            async for piece in _pieces(opened):
                await response.write(piece)
            await response.write_eof()
        except _Broken:
            # The client must not take this for the end: it sees the connection break, as from an engine.
            if request.transport is not None:
                request.transport.abort()
            self._metrics.broken.inc()
        except ConnectionError:
            pass  # the client has left
        return response


async def _pieces(opened: Opened) -> AsyncIterator[bytes]:
    piece = opened.first
    while piece:
        yield piece
        try:
            piece = await opened.answer.content.readany()
        except (aiohttp.ClientError, OSError, TimeoutError):
            raise _Broken from None
