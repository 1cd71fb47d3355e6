"""``prefill-client``: the picker sends the prefill itself, then hands the gateway the decode body.

For each request whose pick names a prefill endpoint: that endpoint computes the prompt, and the
body that goes on says where its cache is. Whatever goes wrong, the request goes on as the client
sent it, and the endpoint that decodes computes the prompt. So a failing prefill costs time, never
an answer:

* a refused connection, a status from 500, an answer without usable parameters: one other endpoint
  is tried, if half of the time is left and not too many requests are tried again;
* a time-out is not tried again: the first endpoint may still compute, and a pool would fill up
  with prefills that nobody reads;
* a status from 400 is not tried again: the endpoint that decodes says the same, to the client;
* parameters older than nine tenths of the lease, or of an endpoint that restarted since, are
  never used.

With connectors whose legs begin at once the request goes on at once, too. If its prefill fails
later, the endpoint that decodes is told to give the request up.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta

from epp import plugin
from epp.config.units import parse_duration
from epp.disagg.connectors import CONNECTORS, BadAnswer, Mode, Transfer, Unsplittable
from epp.disagg.connectors.base import BOOTSTRAP_PORT, LEASE_PART
from epp.disagg.remote.health import Health
from epp.disagg.remote.leg import Answer, Http, LegFailed, Sent
from epp.headers import SLO_TTFT_MS, first
from epp.model import Ending, Endpoint, EndpointId, InferenceRequest, Pick, PrefillLeg
from epp.process.client_tls import client_context

EARLY_SECONDS = 0.01  #: in which most failures of a leg that runs beside are seen
Way = Literal["nixlv2", "shared-storage", "sglang", "mooncake"]


class PrefillClient:
    """Sends prefills to the endpoints that picks name, in the place of a sidecar.

    Without it, or a profile handler that picks prefill endpoints, nothing is sent anywhere. Needs
    a gateway that waits, so the request's body in mode FULL_DUPLEX_STREAMED. Not in llm-d.
    """

    type: ClassVar[str] = "prefill-client"
    stability: ClassVar[plugin.Stability] = "beta"

    class Params(plugin.Params, frozen=True):
        connector: Way = "nixlv2"  #: how the engines hand a KV cache over
        bootstrap_port: Annotated[int, Meta(ge=1, le=65535)] = BOOTSTRAP_PORT
        """Of prefill endpoints, with sglang and mooncake."""
        timeout: str = "20s"
        """For all attempts together; a client's time to first token bounds it too."""
        lease: str = "30s"  #: for which prefill engines keep a cache; set it as theirs is set
        retries: Annotated[int, Meta(ge=0, le=1)] = 1  #: on another endpoint
        max_in_flight: Annotated[int, Meta(ge=1)] = 512  #: prefills at once; more are decoded only
        scheme: Literal["http", "https"] = "http"
        ca_file: str = ""  #: who signs the endpoints' certificates; "" is the system's authorities
        insecure_skip_verify: bool = False  #: accept any certificate

    def __init__(self, params: Params, tools: plugin.Tools) -> None:
        self.counts: Counter[str] = Counter()  #: legs by how they ended: fixed words
        self.in_flight = 0  #: prefills under way
        self._params = params
        self._clock = tools.clock
        self._connector = CONNECTORS[params.connector]
        self._timeout = parse_duration(params.timeout)
        self._lease = parse_duration(params.lease)
        self._health = Health()
        self._lives: dict[EndpointId, _Life] = {}
        self._beside: set[asyncio.Task[None]] = set()
        self._closing = False
        self._http = Http(
            params.scheme, tls=_tls(params), most=params.max_in_flight, clock=tools.clock
        )

    async def prefill(
        self, request: InferenceRequest, pick: Pick, legs: plugin.Legs
    ) -> plugin.Prefilled:
        """See `plugin.Prefiller.prefill`."""
        if self.in_flight >= self._params.max_in_flight:
            return self._alone(request, "busy", began=self._clock.now())
        self.in_flight += 1
        try:
            return await self._tried(request, pick, legs)
        finally:
            self.in_flight -= 1
            if self._closing and not self.in_flight:
                await self._http.close()

    def forget(self, endpoint_id: EndpointId) -> None:
        """See `plugin.PoolWatcher.forget`: what it answered before is worth nothing."""
        self._lives.pop(endpoint_id, None)
        self._health.forget(endpoint_id)

    def dump_state(self) -> Mapping[str, Any]:
        """See `plugin.StateDumper.dump_state`."""
        resting = self._health.resting
        return {"legs": dict(self.counts), "inFlight": self.in_flight, "failedLast": resting}

    async def close(self) -> None:
        """Let go of connections, once the prefills under way are done."""
        self._closing = True
        if not self.in_flight:
            await self._http.close()

    async def _tried(
        self, request: InferenceRequest, pick: Pick, legs: plugin.Legs
    ) -> plugin.Prefilled:
        began = self._clock.now()
        named = [each for each in (pick.prefill, *pick.prefill_next) if each is not None]
        able = self._health.fit(named, began)[: 1 + self._params.retries]
        self._health.asked()
        reason, asked = "no-healthy-endpoint", 0
        seconds = self._budget(request, began)
        for endpoint, life in [(each, self._life(each)) for each in able]:
            lost = self._clock.now() - began
            left = seconds - lost
            if asked and (left < seconds / 2 or not self._health.may_retry()):
                break
            if endpoint is not pick.prefill:
                legs.prefill_at(endpoint)
            asked += 1
            this = _Try(pick, legs, life, began=began, asked=asked, lost=lost)
            try:
                async with asyncio.timeout(left):
                    return await self._once(request, endpoint, this)
            except TimeoutError:
                failure = LegFailed("timeout", again=False)
            except Unsplittable as error:
                failure = LegFailed(str(error), again=False, blame=False)
            except LegFailed as error:
                failure = error
            reason = failure.reason
            self._note(endpoint, failure, this.life)
            if not failure.again:
                break
        return self._alone(request, reason, began=began, asked=asked)

    async def _once(
        self, request: InferenceRequest, endpoint: Endpoint, this: _Try
    ) -> plugin.Prefilled:
        transfer = await self._transfer(request, endpoint, this.life)
        sent = Sent(self._connector.prefill_body(request.body, transfer), transfer)
        if self._connector.mode is Mode.BOTH_AT_ONCE:
            return await self._both(request, endpoint, sent, this)
        answer = await self._http.prefill(endpoint, request, sent)
        body = self._spliced(request, answer, transfer)
        if self._clock.now() - answer.at >= LEASE_PART * self._lease:
            raise LegFailed("lease-expired", again=False, blame=False)
        if not self._lasts(endpoint, this.life):
            raise LegFailed("restarted", blame=False)
        return plugin.Prefilled(body, self._done(endpoint, this))

    async def _transfer(
        self, request: InferenceRequest, endpoint: Endpoint, life: _Life
    ) -> Transfer:
        port, made = self._params.bootstrap_port, str(uuid.uuid4())
        transfer = Transfer(made, request.path, endpoint.host, port)
        if not self._connector.asks_engine_id:
            return transfer
        known = life.engine_id or await self._http.engine_id(transfer, endpoint.rank)
        if not known:
            raise LegFailed("no-engine-id")
        life.engine_id = known
        return Transfer(made, request.path, endpoint.host, port, known)

    def _life(self, endpoint: Endpoint) -> _Life:
        return self._lives.setdefault(endpoint.id, _Life())

    def _lasts(self, endpoint: Endpoint, life: _Life) -> bool:
        return self._lives.get(endpoint.id) is life

    async def _both(
        self, request: InferenceRequest, endpoint: Endpoint, sent: Sent, this: _Try
    ) -> plugin.Prefilled:
        """Let the leg run beside the request, unless it fails at once."""
        leg = asyncio.create_task(self._http_leg(endpoint, request, sent))
        try:
            await asyncio.wait({leg}, timeout=EARLY_SECONDS)
            if leg.done():
                leg.result()
        except BaseException:
            leg.cancel()
            raise
        body = self._connector.decode_body(request.body, b"", sent.transfer)
        this.legs.listen(_Ends(leg))
        self.in_flight += 1  # before this call's own end, or connections might be let go of
        watch = asyncio.create_task(self._watch(leg, endpoint, sent.transfer, this))
        self._beside.add(watch)
        watch.add_done_callback(self._beside.discard)
        now = self._clock.now()
        known = PrefillLeg(endpoint, this.reason(endpoint), now, None, this.asked)
        return plugin.Prefilled(body, known)

    async def _http_leg(self, endpoint: Endpoint, request: InferenceRequest, sent: Sent) -> None:
        try:
            async with asyncio.timeout(self._timeout):
                await self._http.prefill(endpoint, request, sent)
        except TimeoutError:
            raise LegFailed("timeout", again=False) from None

    async def _watch(
        self, leg: asyncio.Task[None], endpoint: Endpoint, transfer: Transfer, this: _Try
    ) -> None:
        """Note how a leg beside its request ends; have a request without one given up."""
        try:
            await leg
            this.legs.prefilled(self._done(endpoint, this))
        except asyncio.CancelledError:
            self.counts["abandoned"] += 1
        except LegFailed as failure:
            self._note(endpoint, failure, this.life)
            this.legs.prefilled(self._failed(failure.reason, began=this.began, asked=this.asked))
            told = self._connector.abort(transfer)
            if told is not None:
                await self._http.abort(this.pick.endpoints[0], told)
        finally:
            self.in_flight -= 1
            if self._closing and not self.in_flight:
                await self._http.close()

    def _spliced(self, request: InferenceRequest, answer: Answer, transfer: Transfer) -> bytes:
        try:
            return self._connector.decode_body(request.body, answer.body, transfer)
        except BadAnswer:
            raise LegFailed("malformed") from None

    def _note(self, endpoint: Endpoint, failure: LegFailed, life: _Life) -> None:
        if failure.blame and self._lasts(endpoint, life):
            self._health.bad(endpoint.id, self._clock.now())

    def _done(self, endpoint: Endpoint, this: _Try) -> PrefillLeg:
        self._health.good(endpoint.id)
        self.counts["done"] += 1
        now = self._clock.now()
        took = now - this.began
        return PrefillLeg(endpoint, this.reason(endpoint), now, took, this.asked, this.lost)

    def _alone(
        self, request: InferenceRequest, reason: str, *, began: float, asked: int = 0
    ) -> plugin.Prefilled:
        """The request goes on as it came."""
        return plugin.Prefilled(request.body, self._failed(reason, began=began, asked=asked))

    def _failed(self, reason: str, *, began: float, asked: int) -> PrefillLeg:
        self.counts[reason] += 1
        now = self._clock.now()
        return PrefillLeg(None, reason, now, now - began, asked)

    def _budget(self, request: InferenceRequest, now: float) -> float:
        """Seconds that the request may wait for a prefill."""
        asked = first(request.headers, SLO_TTFT_MS)
        if not asked.isdecimal() or not int(asked[:9]):
            return self._timeout
        left = int(asked[:9]) / 1000 - (now - request.arrived_at)
        return min(self._timeout, max(left, 0.0))


class _Life:
    """An endpoint from one `PrefillClient.forget` to the next: the same process, as far as known."""

    __slots__ = ("engine_id",)

    def __init__(self) -> None:
        self.engine_id = ""  #: "" until it was asked for


class _Try:
    """What the attempts of one request have in common."""

    __slots__ = ("asked", "began", "legs", "life", "lost", "pick")

    def __init__(
        self,
        pick: Pick,
        legs: plugin.Legs,
        life: _Life,
        *,
        began: float,
        asked: int,
        lost: float,
    ) -> None:
        self.pick = pick
        self.legs = legs
        self.life = life
        self.began = began
        self.asked = asked
        self.lost = lost  #: seconds, by attempts before this one

    def reason(self, endpoint: Endpoint) -> str:
        """Why the prompt was computed there; "" if it was picked."""
        return "" if endpoint is self.pick.prefill else "retried"


class _Ends:
    """Ends a leg with its request."""

    def __init__(self, leg: asyncio.Task[None]) -> None:
        self._leg = leg

    def picked(self, request: InferenceRequest, pick: Pick) -> None:
        """See `plugin.Observer.picked`."""

    def ended(self, request: InferenceRequest, pick: Pick, ending: Ending) -> None:
        """See `plugin.Observer.ended`: if the leg is not done, nobody will read it."""
        self._leg.cancel()


def _tls(params: PrefillClient.Params) -> Any:
    if params.scheme == "http" or not (params.ca_file or params.insecure_skip_verify):
        return True
    try:
        return client_context(params.ca_file, "", "", verify=not params.insecure_skip_verify)
    except OSError as error:
        raise ValueError(f"caFile {params.ca_file!r}: {error}") from error
