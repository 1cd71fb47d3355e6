"""The prefill leg: one endpoint after the other, at most two, within one budget of time.

A prefill that was given up may go on at its endpoint and hold blocks there until its lease ends.
So there is one second try, elsewhere, and never a third.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence

import aiohttp
import msgspec

from epp.disagg.connectors import BadAnswer, Connector, Transfer
from epp.disagg.connectors.mooncake import engine_id_in
from epp.sidecar.head import Address
from epp.sidecar.legs.asked import Asked, Failed, Prefilled
from epp.sidecar.legs.outbound import PIECE_BYTES, Outbound
from epp.sidecar.metrics import Metrics
from epp.sidecar.options import SidecarOptions

MOST_ENDPOINTS = 2  #: asked for one request
MOST_ANSWER_BYTES = 16 * 2**20
QUERY_SECONDS = 2.0  #: for an engine's id
_AGAIN = frozenset({502, 503, 504})  #: of the same endpoint, if retries are wanted


class Answered(msgspec.Struct, frozen=True):
    """What a prefill endpoint said."""

    body: bytes
    at: float  #: seconds on the event loop's clock when it began to; the lease runs since before


class Prefills:
    """Has prompts computed by prefill endpoints."""

    def __init__(
        self, outbound: Outbound, connector: Connector, *, options: SidecarOptions, metrics: Metrics
    ) -> None:
        self._outbound = outbound
        self._connector = connector
        self._options = options
        self._metrics = metrics

    async def run(self, asked: Asked, endpoints: Sequence[Address]) -> Prefilled:
        """Return what the engine is to be sent.

        Raises:
            Failed: no endpoint did.
            Unsplittable: the request must be computed on one engine.
        """
        failed = Failed("no-endpoint")
        try:
            async with asyncio.timeout(self._options.prefill_timeout):
                for address in endpoints[:MOST_ENDPOINTS]:
                    try:
                        return await self._at(address, asked)
                    except Failed as why:
                        failed = why
                    if not failed.elsewhere:
                        break
        except TimeoutError:
            failed = Failed("time-out")
            self._metrics.prefills.labels(failed.reason).inc()
        raise failed

    async def transfer(self, address: Address, asked: Asked) -> Transfer:
        """Begin an attempt.

        Raises:
            Failed: the endpoint's engine does not say who it is.
        """
        port = self._options.mooncake_bootstrap_port
        wants_id = self._connector.asks_engine_id
        engine_id = await self._engine_id(Address(address.host, port)) if wants_id else ""
        return Transfer(uuid.uuid4().hex, asked.plain_path, address.host, port, engine_id)

    async def post(self, address: Address, asked: Asked, body: bytes) -> Answered:
        """Send a prefill's body.

        Raises:
            Failed: the answer is an error, or none came.
        """
        began = asyncio.get_running_loop().time()
        try:
            with self._metrics.prefills_in_flight.track_inprogress():
                async with asyncio.timeout(self._options.prefill_timeout):
                    answer = await self._post(address, asked, body)
        except (Failed, TimeoutError) as error:
            failed = error if isinstance(error, Failed) else Failed("time-out")
            self._metrics.prefills.labels(failed.reason).inc()
            raise failed from None
        self._metrics.prefills.labels("good").inc()
        self._metrics.prefill_seconds.observe(asyncio.get_running_loop().time() - began)
        return answer

    async def _at(self, address: Address, asked: Asked) -> Prefilled:
        """Try one endpoint, more than once if it is only busy and that is wanted."""
        retries = self._options.prefill_max_retries
        while True:
            transfer = await self.transfer(address, asked)
            body = self._connector.prefill_body(asked.body, transfer)
            try:
                answer = await self.post(address, asked, body)
            except Failed as failed:
                if retries <= 0 or failed.reason != "busy":
                    raise
                retries -= 1
                await asyncio.sleep(self._options.prefill_retry_backoff)
                continue
            try:
                made = self._connector.decode_body(asked.body, answer.body, transfer)
                return Prefilled(made, answer.at)
            except BadAnswer:
                self._metrics.stranded.inc()
                raise Failed("bad-answer") from None

    async def _post(self, address: Address, asked: Asked, body: bytes) -> Answered:
        head = [(n, v) for n, v in asked.head if n.lower() not in ("accept-encoding", "accept")]
        try:
            call = self._outbound.request("prefiller", address, asked.path, head=head, body=body)
            async with call as answer:
                at = asyncio.get_running_loop().time()
                if answer.status in _AGAIN:
                    raise Failed("busy")
                if answer.status != 200:
                    kind = answer.status // 100
                    raise Failed(f"status-{kind}xx", elsewhere=kind != 4 or answer.status == 429)
                return Answered(await _whole(answer), at)
        except (aiohttp.ClientConnectorError, ValueError):  # or no host has such a name
            raise Failed("connect") from None
        except TimeoutError:
            raise Failed("time-out") from None
        except (aiohttp.ClientError, OSError):
            raise Failed("disconnect") from None

    async def _engine_id(self, address: Address) -> str:
        ask = self._outbound.request
        try:
            call = ask("prefiller", address, "/query", method="GET", secure=False)
            async with asyncio.timeout(QUERY_SECONDS), call as answer:
                found = engine_id_in(await _whole(answer), 0)
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError):
            found = ""
        if not found:
            self._metrics.prefills.labels("no-engine-id").inc()
            raise Failed("no-engine-id")
        return found


async def _whole(answer: aiohttp.ClientResponse) -> bytes:
    parts, size = [], 0
    async for part in answer.content.iter_chunked(PIECE_BYTES):
        size += len(part)
        if size > MOST_ANSWER_BYTES:
            raise Failed("bad-answer")
        parts.append(part)
    return b"".join(parts)
