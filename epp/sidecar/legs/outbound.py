"""Requests that the sidecar makes: to its engine, and to prefill endpoints. Bytes as they are.

No redirects, cookies, proxies or decompression: an answer goes on as it came, and nobody but the
server that was meant is asked.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import aiohttp
from yarl import URL

from epp.process.client_tls import client_context
from epp.sidecar.head import Address
from epp.sidecar.options import SidecarOptions

IDLE_SECONDS = 3.0  #: for which a connection is kept; vLLM closes its own after 5
LINE_BYTES = 65_536  #: of an answer's head
PIECE_BYTES = 65_536
_ADDED = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")


class Call:
    """One request: ``async with call as answer``. Leaving it early closes the connection."""

    def __init__(self, asking: aiohttp.client._RequestContextManager) -> None:
        self._asking = asking
        self._answer: aiohttp.ClientResponse | None = None

    async def __aenter__(self) -> aiohttp.ClientResponse:
        self._answer = await self._asking
        return self._answer

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if self._answer is None:
            return
        if kind is not None or not self._answer.content.at_eof():
            self._answer.close()
        else:
            self._answer.release()


class Outbound:
    """Two pools of connections, closed together."""

    def __init__(self, options: SidecarOptions) -> None:
        self._options = options
        self._secure = {stage: stage in options.enable_tls for stage in ("prefiller", "decoder")}

    async def __aenter__(self) -> Self:
        self._tls = {stage: self._context(stage) for stage in ("prefiller", "decoder")}
        self._sessions = {
            "prefiller": self._session(keeps=True),
            # The engine is next door: a new connection is cheaper than one it may just be closing.
            "decoder": self._session(keeps="decoder" in self._options.enable_tls),
        }
        return self

    async def __aexit__(self, *_: object) -> None:
        for session in self._sessions.values():
            await session.close()

    def request(
        self,
        stage: str,
        address: Address,
        path: str,
        *,
        method: str = "POST",
        head: Sequence[tuple[str, str]] = (),
        body: object = None,
        secure: bool | None = None,
    ) -> Call:
        """Return a request to make.

        Args:
            stage: "prefiller" or "decoder".
            address: of the server.
            path: with its query, as it is written in a request's first line.
            method: of HTTP.
            head: all its headers.
            body: bytes, or an asynchronous iterator of them.
            secure: over TLS; None as the stage is.
        """
        over_tls = self._secure[stage] if secure is None else secure
        url = URL(f"{'https' if over_tls else 'http'}://{address}{path}", encoded=True)
        return Call(
            self._sessions[stage].request(
                method,
                url,
                headers=list(head),
                data=body,
                ssl=self._tls[stage],
                allow_redirects=False,
                skip_auto_headers=_ADDED,
                max_line_size=LINE_BYTES,
                max_field_size=LINE_BYTES,
                read_bufsize=PIECE_BYTES,
            )
        )

    def _session(self, *, keeps: bool) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(
            limit=0, **({"keepalive_timeout": IDLE_SECONDS} if keeps else {"force_close": True})
        )
        options = self._options
        return aiohttp.ClientSession(
            connector=connector,
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(
                sock_connect=options.connect_timeout, sock_read=options.idle_timeout
            ),
        )

    def _context(self, stage: str) -> ssl.SSLContext:
        options = self._options
        verify = stage not in options.tls_insecure_skip_verify
        return client_context(options.tls_ca_file, "", "", verify=verify)
