"""One prefill over HTTP: sent, answered, or failed in a way that says what may be tried next."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from typing import Literal

import aiohttp
import msgspec
from yarl import URL

from epp.clock import Clock
from epp.disagg.connectors import Transfer
from epp.disagg.connectors.mooncake import bootstrap_url, engine_id_in
from epp.headers import REQUEST_ID
from epp.model import Endpoint, InferenceRequest

MOST_BYTES = 8 << 20  #: of an answer; block ids of a million tokens take 1 MB
CONNECT_SECONDS = 2.0
QUERY_SECONDS = 2.0
KEEP_ALIVE_SECONDS = 3.0  #: below uvicorn's 5: a connection it closes meanwhile is a failed prefill
PASSED = frozenset({"content-type", "authorization", "x-api-key", "traceparent", "tracestate"})
"""Headers of the client that a prefill endpoint is sent; the others are between it and others."""


JSON = "application/json"
_PLAIN = {"accept-encoding": "identity"}


class LegFailed(Exception):
    """A prefill that came to nothing.

    Args:
        reason: a fixed word.
        again: another endpoint may do it.
        blame: by this endpoint's fault.
    """

    def __init__(self, reason: str, *, again: bool = True, blame: bool = True) -> None:
        super().__init__(reason)
        self.reason = reason
        self.again = again
        self.blame = blame


class Answer(msgspec.Struct, frozen=True):
    """Of a prefill endpoint, with status 200."""

    body: bytes
    at: float  #: when its head came, seconds on `Clock.now()`: the lease runs since before


class Sent(msgspec.Struct, frozen=True):
    """What a prefill endpoint is sent, and for which attempt."""

    body: bytes
    transfer: Transfer


class Http:
    """Asks endpoints over one pool of connections, opened when first needed.

    Args:
        scheme: "http" or "https".
        tls: which certificates to believe; True: those the system does.
        most: connections at once.
        clock: stamps answers.
    """

    def __init__(
        self, scheme: str, *, tls: ssl.SSLContext | Literal[True], most: int, clock: Clock
    ) -> None:
        self._scheme = scheme
        self._tls = tls
        self._most = most
        self._clock = clock
        self._session: aiohttp.ClientSession | None = None

    async def prefill(self, endpoint: Endpoint, request: InferenceRequest, sent: Sent) -> Answer:
        """Send a prefill and return its answer.

        Raises:
            LegFailed: there was none, or not with status 200.
        """
        path = request.headers.get(":path") or request.path
        if not path.startswith("/"):
            raise LegFailed("path", again=False, blame=False)  # it would be read as of the host
        headers = {**_passed(request.headers), **_PLAIN, REQUEST_ID: sent.transfer.id}
        try:
            url = URL(f"{self._scheme}://{endpoint.address}{path}", encoded=True)
            call = self._open().post(url, data=sent.body, headers=headers, allow_redirects=False)
            async with call as answer:
                at = self._clock.now()
                _check(answer)
                return Answer(await _whole(answer), at)
        except (aiohttp.ClientError, OSError, ValueError, asyncio.IncompleteReadError):
            raise LegFailed("connection") from None

    async def engine_id(self, transfer: Transfer, rank: int) -> str:
        """Ask a bootstrap server which engine it is of; "" if it does not say."""
        url = bootstrap_url(transfer) + "/query"
        call = self._open().get(url, headers=_PLAIN, allow_redirects=False)
        try:
            async with asyncio.timeout(QUERY_SECONDS), call as answer:
                return engine_id_in(await _whole(answer), rank) if answer.status == 200 else ""
        except (aiohttp.ClientError, OSError, ValueError, TimeoutError, LegFailed):
            return ""

    async def abort(self, endpoint: Endpoint, told: tuple[str, bytes]) -> None:
        """Tell an endpoint to give a request up, if it can be told."""
        url, headers = f"{self._scheme}://{endpoint.address}{told[0]}", {"content-type": JSON}
        call = self._open().post(url, data=told[1], headers=headers, allow_redirects=False)
        try:
            async with asyncio.timeout(QUERY_SECONDS), call:
                pass
        except (aiohttp.ClientError, OSError, TimeoutError):
            return

    async def close(self) -> None:
        """Let go of all connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=self._most, keepalive_timeout=KEEP_ALIVE_SECONDS, ssl=self._tls
                ),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
                auto_decompress=False,  # a megabyte could become a thousand
                trust_env=False,
            )
        return self._session


def _passed(told: Mapping[str, str]) -> dict[str, str]:
    """Return the headers that a prefill endpoint is sent, of a client's."""
    return {"content-type": JSON, **{name: told[name] for name in PASSED & told.keys()}}


def _check(answer: aiohttp.ClientResponse) -> None:
    status = answer.status
    if status >= 500:
        raise LegFailed("failed")
    if status == 429:
        raise LegFailed("failed", blame=False)
    if status >= 400:
        raise LegFailed("refused", again=False, blame=False)  # what decodes will say why
    if status != 200 or answer.headers.get("content-encoding", "identity") != "identity":
        raise LegFailed("malformed")  # no engine sends one elsewhere, or compresses unasked


async def _whole(answer: aiohttp.ClientResponse) -> bytes:
    page = bytearray()
    async for piece in answer.content.iter_any():
        page += piece
        if len(page) > MOST_BYTES:
            raise LegFailed("malformed")
    return bytes(page)
