"""The line every request takes, top to bottom: parse, admit, enrich, schedule, reserve."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Protocol

from msgspec import structs

from epp.clock import Clock
from epp.disagg.strip import without_transfer
from epp.errors import NoEndpoints
from epp.exchange import Exchange, decoded
from epp.formats.weight import HEAVY_BYTES, LIGHT_BYTES
from epp.headers import PREFILLER
from epp.ledger import Ledger, Reservation
from epp.model import (
    Arrival,
    Endpoint,
    InferenceRequest,
    Outcome,
    Pick,
    PrefillLeg,
    join_host_port,
)
from epp.pipeline import Formats, OutputTokens, Pipeline
from epp.plugin import Observer, Prefiller
from epp.pool import Pool


class Reader(Protocol):
    """Reads bodies that take long, without keeping other requests waiting (see `aside`)."""

    async def read(self, arrival: Arrival, formats: Formats) -> Arrival:
        """Return the arrival understood, or as it is if ``formats`` may read it here.

        Raises:
            EppError: the request must be answered with an error instead.
        """
        ...


class Router:
    """Takes a request from its bytes to an exchange."""

    def __init__(
        self,
        pool: Pool,
        pipeline: Pipeline,
        ledger: Ledger,
        *,
        clock: Clock,
        on_observer_error: Callable[[Observer, Exception], None],
        heed_subset: bool = True,
        reader: Reader | None = None,
    ) -> None:
        self.pipeline = pipeline  #: what is used now; replaced whole by `reload`
        self._pool = pool
        self._ledger = ledger
        self._clock = clock
        self._on_observer_error = on_observer_error
        self._heed_subset = heed_subset  #: whether the gateway's subset hint counts
        self._reader = reader  #: of bodies that take long; None reads all here

    def reload(self, pipeline: Pipeline) -> None:
        """Use ``pipeline`` for every request from now on; those under way keep theirs."""
        self.pipeline = pipeline

    async def route(self, arrival: Arrival, *, alone: str = "") -> Exchange:
        """Understand the request, wait for room, choose an endpoint, book it.

        Args:
            arrival: the request.
            alone: why no prompt is computed elsewhere; "" if it may be.

        Raises:
            EppError: the request must be answered with an error instead.
        """
        line = self.pipeline  # read once: a reload never splits a request
        arrival, request = await self._understood(arrival, line)
        request, endpoints = await self._enriched(arrival, request, line)
        # From the snapshot to `open` nothing waits: the next request must see this booking.
        if not endpoints:
            raise NoEndpoints("no endpoint of the pool may serve this request")
        pick = line.scheduler.pick(request, endpoints)
        for adder in line.request_headers:
            if extra := adder.request_headers(request, pick):
                pick = structs.replace(pick, headers={**pick.headers, **extra})
        exchange = Exchange(
            request,
            pick,
            line.observers,
            self._reserve(request, pick, line.output),
            clock=self._clock,
            on_error=self._on_observer_error,
            book=partial(self._book, output=line.output) if line.output else self._book,
        )
        exchange.open()
        if line.prefiller is None or pick.prefill is None:
            return exchange
        alone = alone or ("" if arrival.patient else "mode")
        await self._prefill(line.prefiller, exchange, alone=alone)
        read = exchange.leg is not None and exchange.leg.endpoint is not None
        if self._can_read(pick.endpoints[0]) if read else self._still_here(pick.endpoints[:1]):
            return exchange
        exchange.end(Outcome.FAILED)  # what was to decode went away or silent meanwhile
        return await self.route(arrival, alone="decode-silent")

    async def _understood(
        self, arrival: Arrival, line: Pipeline
    ) -> tuple[Arrival, InferenceRequest]:
        """Read the request and wait for room."""
        if self._reader is not None and len(arrival.body) > LIGHT_BYTES:
            arrival = await self._reader.read(arrival, line.formats)
        if arrival.understood is None and arrival.body:
            arrival = without_transfer(arrival, most=HEAVY_BYTES)
        request = line.rules.apply(line.formats.parse(arrival, self._clock.now()))
        for preparer in line.preparers:
            request = preparer.prepare(request)
        if line.gate.must_wait(request, lambda: self._allowed(arrival)):
            began = self._clock.now()
            await line.gate.wait(request)
            request = structs.replace(request, waited=self._clock.now() - began)
        return arrival, request

    async def _enriched(
        self, arrival: Arrival, request: InferenceRequest, line: Pipeline
    ) -> tuple[InferenceRequest, Sequence[Endpoint]]:
        """Add what is known, and find the endpoints that may serve it."""
        endpoints = self._allowed(arrival)
        for screener in line.screeners:
            endpoints = screener.screen(request, endpoints)
        for enricher in line.enrichers:
            enriched = enricher.enrich(request, endpoints)
            if isinstance(enriched, InferenceRequest):
                request = enriched
            else:
                request = await enriched
                endpoints = self._still_here(endpoints)
        for admitter in line.admitters:
            admitter.admit(request, endpoints)
        return request, endpoints

    async def _prefill(self, prefiller: Prefiller, exchange: Exchange, *, alone: str) -> None:
        """Have the prompt computed elsewhere; no sidecar is to do so again."""
        exchange.book_prefill = partial(self._book, leg=True)
        extra = {k: v for k, v in exchange.pick.headers.items() if k != PREFILLER}
        pick = structs.replace(exchange.pick, headers=extra)
        if alone:
            exchange.prefilled(PrefillLeg(None, alone, self._clock.now()))
            exchange.send(exchange.request.body, pick)
            return
        try:
            done = await prefiller.prefill(exchange.request, exchange.pick, exchange)
        except BaseException:  # cancelled: the client has left
            exchange.end(Outcome.ABANDONED)
            raise
        exchange.prefilled(done.leg)
        exchange.send(done.body, pick)

    def _allowed(self, arrival: Arrival) -> Sequence[Endpoint]:
        """The endpoints this request may use; health rules never leave an allowed subset empty."""
        endpoints: Sequence[Endpoint] = self._pool.routable()
        if arrival.subset is not None and self._heed_subset:
            subset = frozenset(arrival.subset)
            endpoints = _named(subset, endpoints) or _named(
                subset, [e for e in self._pool.snapshot() if not e.draining]
            )
            if not endpoints:
                raise NoEndpoints("no ready endpoint is in the subset that the gateway allows")
        elif not endpoints:
            raise NoEndpoints("the pool has no ready endpoint")
        return endpoints

    def _still_here(self, endpoints: Sequence[Endpoint]) -> Sequence[Endpoint]:
        """The same endpoints as they are now, after a wait; those gone or draining left out."""
        now = (self._pool.get(endpoint.id) for endpoint in endpoints)
        return [endpoint for endpoint in now if endpoint is not None and not endpoint.draining]

    def _can_read(self, decode: Endpoint) -> bool:
        """Whether it reads a cache at once, as far as is known.

        An engine that hangs would read it when its lease is over, and the blocks hold another
        prompt: it would answer that, and keep it. So one that is not heard of does not, unless
        none is.
        """
        now = self._pool.get(decode.id)
        if now is None or now.draining or not now.reachable:
            return False
        if now.load is not None:
            return not now.load.asleep
        return all(each.load is None for each in self._pool.snapshot())

    def _reserve(
        self, request: InferenceRequest, pick: Pick, output: OutputTokens | None
    ) -> list[Reservation]:
        target = pick.endpoints[0]
        if pick.prefill is None:
            return [self._book(request, target, output=output)]
        elsewhere = self._book(request, pick.prefill, leg=True)
        return [self._book(decoded(request), target, output=output), elsewhere]

    def _book(
        self,
        request: InferenceRequest,
        endpoint: Endpoint,
        *,
        output: OutputTokens | None = None,
        leg: bool = False,
    ) -> Reservation:
        tokens = request.uncached_tokens(endpoint.id)
        expected = 0 if output is None else output(request)
        return self._ledger.reserve(endpoint, tokens, output=expected, request=request.id, leg=leg)


def _named(subset: frozenset[str], endpoints: Sequence[Endpoint]) -> list[Endpoint]:
    """Keep endpoints named as ``host:port`` or, for all ports, as ``host``.

    IPv6 has many spellings. They are compared only where the text alone names nobody.
    """
    found = [e for e in endpoints if e.host in subset or join_host_port(e.host, e.port) in subset]
    if found or not any(name.count(":") > 1 for name in subset):
        return found
    usual = frozenset(map(_usual, subset))
    return [
        endpoint
        for endpoint in endpoints
        if (host := _usual(endpoint.host)) in usual or join_host_port(host, endpoint.port) in usual
    ]


@lru_cache(maxsize=8192)
def _usual(name: str) -> str:
    """``host`` or ``host:port`` with an IPv6 host in its usual spelling (RFC 5952)."""
    bracketed = name.startswith("[")
    host, closed, port = name[1:].partition("]") if bracketed else (name, "", "")
    try:
        host = ipaddress.IPv6Address(host).compressed
    except ValueError:
        return name
    if port:
        return f"[{host}]{port}"
    return host if closed or not bracketed else name
