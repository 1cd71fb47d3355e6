"""Bodies of requests: read whole within bounds, and cleared of what clients may not say.

Whatever could be read as JSON by an engine is read, whatever its path: a single field in it can
stop a vLLM server.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

from aiohttp import web

from epp.disagg.strip import stripped
from epp.errors import BadRequest
from epp.formats.weight import HEAVY_BYTES
from epp.sidecar.legs.asked import Refused
from epp.sidecar.metrics import Metrics
from epp.sidecar.options import SidecarOptions


class Held:
    """The bytes of one request's body, counted until it is over."""

    def __init__(self) -> None:
        self.size = 0


class Bodies:
    """Reads bodies; counts what all requests together hold."""

    def __init__(self, options: SidecarOptions, metrics: Metrics) -> None:
        self._options = options
        self._metrics = metrics
        self.buffered = 0  #: bytes

    @contextlib.contextmanager
    def room(self) -> Iterator[Held]:
        """Count the bytes of one request until the block is left."""
        held = Held()
        try:
            yield held
        finally:
            self._count(-held.size)

    async def read(self, request: web.Request, held: Held) -> bytes:
        """Return the body without what the client may not say.

        Raises:
            Refused: it is too long, too slow, or cannot be looked at without keeping others waiting.
        """
        try:
            async with asyncio.timeout(self._options.body_timeout):
                body = await self._whole(request, held)
        except TimeoutError:
            raise Refused(408, "The request's body did not come in time.", "slow-body") from None
        try:
            return stripped(body, most=HEAVY_BYTES)
        except BadRequest as error:
            raise Refused(400, str(error), "bad-body") from None

    async def _whole(self, request: web.Request, held: Held) -> bytes:
        most = self._options.max_body_bytes
        parts = []
        if (request.content_length or 0) > most:
            raise Refused(413, f"The body is longer than {most} bytes.", "long-body")
        async for part in request.content.iter_any():
            held.size += len(part)
            self._count(len(part))
            if held.size > most:
                raise Refused(413, f"The body is longer than {most} bytes.", "long-body")
            if self.buffered > self._options.max_buffered_bytes:
                raise Refused(503, "The sidecar holds too many bytes of requests.", "full")
            parts.append(part)
        return b"".join(parts)

    def _count(self, change: int) -> None:
        self.buffered += change
        self._metrics.buffered.set(self.buffered)
