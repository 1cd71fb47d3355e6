"""The way of one request through the sidecar: read, cleared, split or not, answered.

Order: bounds, body, whom the picker named, who of them may be asked, the prefill leg, the
engine's leg. Until the first byte has gone to the client anything that fails on the way of a
split request leads to the engine with the request as the client wrote it.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Sequence

from aiohttp import web

from epp.disagg.connectors import CONNECTORS, Mode, Unsplittable
from epp.disagg.connectors.base import LEASE_PART
from epp.errors import BadRequest
from epp.sidecar import answers, head
from epp.sidecar.allowed import Allowed
from epp.sidecar.bodies import Bodies
from epp.sidecar.head import Address, Way
from epp.sidecar.legs.asked import Asked, Failed, Refused
from epp.sidecar.legs.engine import Engine, Opened
from epp.sidecar.legs.pair import both_opened
from epp.sidecar.legs.prefill import Prefills
from epp.sidecar.metrics import Metrics
from epp.sidecar.options import SidecarOptions

MOST_TIMES = 3  #: that an engine is asked for an answer which can be trusted
HANDED_ON = "multipart/"  #: bodies of this kind are no JSON to any engine: they go on as they come


class Proxy:
    """All ranks of one engine. `handle` is what a web server calls."""

    def __init__(
        self,
        options: SidecarOptions,
        *,
        prefills: Prefills,
        engines: Sequence[Engine],
        allowed: Allowed,
        metrics: Metrics,
    ) -> None:
        self.in_flight = 0
        self._options = options
        self._prefills = prefills
        self._engines = engines  #: by rank
        self._allowed = allowed
        self._metrics = metrics
        self._bodies = Bodies(options, metrics)
        self._connector = CONNECTORS[options.kv_connector]

    async def handle(self, request: web.Request, rank: int) -> web.StreamResponse:
        """Answer a request that came to the port of ``rank``."""
        self.in_flight += 1
        self._metrics.in_flight.set(self.in_flight)
        try:
            return await self._handled(request, rank)
        except Refused as refused:
            return self._refusal(refused)
        finally:
            self.in_flight -= 1
            self._metrics.in_flight.set(self.in_flight)

    async def _handled(self, request: web.Request, rank: int) -> web.StreamResponse:
        if self.in_flight > self._options.max_requests:
            raise Refused(503, "The sidecar has too many requests under way.", "busy")
        way = head.read(request.headers.items())
        engine = self._engines[self._rank(way, rank)]
        request_id = head.request_id_of(request.headers) or str(uuid.uuid4())
        asked = Asked(request.raw_path, head.onward(request.headers.items(), request_id), b"")
        if not asked.path.startswith("/"):
            raise Refused(400, "The request's target is no path.", "bad-path")
        if request.method != "POST" or request.content_type.startswith(HANDED_ON):
            self._metrics.requests.labels("passed").inc()
            passed = request.content.iter_any() if request.can_read_body else None
            async with engine.opened(asked, passed, method=request.method) as opened:
                return await engine.relay(request, opened)
        with self._bodies.room() as held:
            body = await self._bodies.read(request, held)
            asked = Asked(asked.path, asked.head, body)
            return await self._inference(request, asked, engine, self._endpoints(way))

    async def _inference(
        self, request: web.Request, asked: Asked, engine: Engine, endpoints: Sequence[Address]
    ) -> web.StreamResponse:
        """Answer by two legs if endpoints are named, else by the engine alone."""
        if not endpoints:
            return await self._local(request, asked, engine, way="local")
        try:
            if self._connector.mode is Mode.BOTH_AT_ONCE:
                return await self._at_once(request, asked, engine, endpoints[0])
            return await self._in_turn(request, asked, engine, endpoints)
        except (Unsplittable, BadRequest) as why:
            reason = str(why.args[0]) if isinstance(why, Unsplittable) else "bad-body"
        except Failed as failed:
            reason = failed.reason
            if self._options.on_prefill_failure == "error":
                raise Refused(502, f"The prefill failed: {reason}.", "prefill-failed") from None
        self._metrics.fallbacks.labels(reason).inc()
        return await self._local(request, asked, engine, way="fallback")

    async def _local(
        self, request: web.Request, asked: Asked, engine: Engine, *, way: str
    ) -> web.StreamResponse:
        self._metrics.requests.labels(way).inc()
        for _ in range(MOST_TIMES):
            async with engine.opened(asked, asked.body) as opened:
                if engine.trust.unproven:
                    await opened.proven()  # what opens a stream says nothing of its tokens
                if engine.trust.holds(opened.sent):
                    return await engine.relay(request, opened)
            self._metrics.dropped.inc()
        raise Refused(503, "The engine hangs again and again.", "engine-hangs")

    async def _in_turn(
        self, request: web.Request, asked: Asked, engine: Engine, endpoints: Sequence[Address]
    ) -> web.StreamResponse:
        prefilled = await self._prefills.run(asked, endpoints)
        ends = prefilled.at + LEASE_PART * self._options.kv_lease
        if asyncio.get_running_loop().time() >= ends:
            self._metrics.stranded.inc()
            raise Failed("lease")
        try:
            with engine.trust.reading(asked.body, ends) as proven:
                async with engine.opened(asked, prefilled.body) as opened:
                    await self._check(opened)
                    proven()
                    if not engine.trust.holds(opened.sent):
                        self._metrics.dropped.inc()
                        raise Failed("lease")
                    self._metrics.requests.labels("split").inc()
                    return await engine.relay(request, opened)
        except Refused:
            self._metrics.stranded.inc()
            raise

    async def _at_once(
        self, request: web.Request, asked: Asked, engine: Engine, address: Address
    ) -> web.StreamResponse:
        legs = (self._prefills, engine)
        async with both_opened(asked, address, legs=legs, connector=self._connector) as opened:
            await self._check(opened)
            self._metrics.requests.labels("split").inc()
            return await engine.relay(request, opened)

    async def _check(self, opened: Opened) -> None:
        """Make sure that the engine could read the prompt's cache.

        Raises:
            Failed: it could not.
        """
        if not await opened.proven():
            raise Failed("decode-failed")

    def _endpoints(self, way: Way) -> Sequence[Address]:
        """Return the prefill endpoints that may be asked, in order.

        Raises:
            Refused: some are named, and none may be asked.
        """
        allowed = [each for each in way.prefillers if self._allowed.permits(each)]
        if way.prefillers and not allowed:
            raise Refused(403, answers.FORBIDDEN.decode(), "forbidden")
        if self._options.enable_prefiller_sampling:
            random.shuffle(allowed)
        return allowed

    def _rank(self, way: Way, rank: int) -> int:
        """Return the rank that the picker named by its port, else the one that was called."""
        named = way.rank_port - self._options.port
        return named if way.rank_port and 0 <= named < len(self._engines) else rank

    def _refusal(self, refused: Refused) -> web.Response:
        self._metrics.refused.labels(refused.reason).inc()
        if refused.status == 403:
            return web.Response(status=403, body=answers.FORBIDDEN, content_type="text/plain")
        response = web.Response(
            status=refused.status,
            body=answers.error(refused.status, refused.message),
            content_type="application/json",
        )
        if refused.status == 503:
            response.headers["Retry-After"] = answers.RETRY_SECONDS
        return response
