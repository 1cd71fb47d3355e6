"""Calls to a Kubernetes API server.

Redirects are not followed and proxies of the environment not used: a token must reach no other
server. Answers are not compressed: on a cluster's network that costs more than it saves.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self

import aiohttp
import msgspec

from epp import __version__
from epp.kube.access import Access
from epp.kube.errors import MAX_MESSAGE, KubeError, error_of
from epp.kube.identity.credentials import Credential
from epp.kube.identity.tls import Tls

CALL_SECONDS = 30.0
CONNECT_SECONDS = 5.0
MAX_ERROR_BYTES = 65_536

MERGE_PATCH = "application/merge-patch+json"


class Call(msgspec.Struct, frozen=True):
    """One request."""

    method: str
    path: str  #: below the server's address; begins with ``/``
    params: Mapping[str, str] = {}
    body: bytes | None = None
    content_type: str = "application/json"
    seconds: float = CALL_SECONDS  #: the bound on all of it, its answer's body included

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


class Kube:
    """The client; an async context manager that owns the connections."""

    def __init__(self, access: Access, *, seconds: float = CALL_SECONDS) -> None:
        """Take ``access``; ``seconds`` bound each call, and of a watch the time to its first byte."""
        self.access = access
        self.seconds = seconds
        self._tls = Tls(access.trust) if access.server.startswith("https:") else None
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),  # each watch keeps one
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={
                "Accept": "application/json",
                "Accept-Encoding": "identity",
                "User-Agent": f"epp/{__version__}",
            },
            trust_env=False,
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def get(self, path: str, **params: str) -> dict[str, Any]:
        """Return an object or a list; like every call, raises `KubeError`."""
        return await self._object(Call("GET", path, params, seconds=self.seconds))

    async def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Create an object in the collection at ``path``; 409 ``AlreadyExists`` if it is there."""
        return await self._object(self._write("POST", path, body))

    async def replace(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Replace an object; 409 ``Conflict`` if its ``resourceVersion`` is not the latest."""
        return await self._object(self._write("PUT", path, body))

    async def patch_status(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Merge ``body`` (``{"status": {...}}``) into an object's status.

        **Source:** RFC 7396: null removes, lists are replaced whole.
        """
        call = self._write("PATCH", f"{path}/status", body)
        return await self._object(msgspec.structs.replace(call, content_type=MERGE_PATCH))

    async def delete(self, path: str) -> None:
        """Delete an object; 404 if there is none."""
        await self.read(Call("DELETE", path, seconds=self.seconds))

    async def read(self, call: Call) -> bytes:
        """The whole body of the answer."""
        async with self.stream(call) as answer:
            return await answer.read()

    @asynccontextmanager
    async def stream(self, call: Call) -> AsyncIterator[aiohttp.ClientResponse]:
        """The answer, its body yet to be read.

        Raises:
            KubeError: the answer is not 2xx, none came, or (while the body is read) it broke off.
        """
        bound = min(self.seconds, call.seconds)
        try:
            async with asyncio.timeout(bound):
                answer = await self._open(call)
            bound = call.seconds
            async with answer:
                yield answer
        except TimeoutError as error:
            raise KubeError(f"{call}: no answer within {bound} s", reason="timeout") from error
        except (aiohttp.ClientSSLError, ssl.SSLError) as error:
            raise KubeError(f"{call}: TLS: {error}", reason="tls") from error
        except (aiohttp.ClientError, OSError) as error:
            text = f"{call}: {type(error).__name__}: {str(error)[:MAX_MESSAGE]}"
            raise KubeError(text, reason="connection") from error

    async def _object(self, call: Call) -> dict[str, Any]:
        body = await self.read(call)
        try:
            return msgspec.json.decode(body, type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise KubeError(f"{call}: the answer is no object: {error}", reason="answer") from error

    def _write(self, method: str, path: str, body: Mapping[str, Any]) -> Call:
        return Call(method, path, body=msgspec.json.encode(body), seconds=self.seconds)

    async def _open(self, call: Call) -> aiohttp.ClientResponse:
        """Send ``call``, once more with another credential if there is one after a 401."""
        shown = await self.access.credentials.current()
        try:
            return await self._accepted(call, shown)
        except KubeError as error:
            if error.status != 401:
                raise
            self.access.credentials.refuse(shown)
            another = await self.access.credentials.current()
            if another == shown:
                raise
        return await self._accepted(call, another)

    async def _accepted(self, call: Call, shown: Credential) -> aiohttp.ClientResponse:
        answer = await self._send(call, shown)
        if answer.status // 100 == 2:
            return answer
        async with answer:
            body = b""
            while len(body) < MAX_ERROR_BYTES and (piece := await answer.content.readany()):
                body += piece
        raise error_of(str(call), answer.status, body, answer.headers)

    async def _send(self, call: Call, shown: Credential) -> aiohttp.ClientResponse:
        if self._session is None:
            raise RuntimeError("the client is not open")
        headers = {"Content-Type": call.content_type} if call.body is not None else {}
        if shown.token:
            headers["Authorization"] = f"Bearer {shown.token}"
        return await self._session.request(
            call.method,
            self.access.server + call.path,
            params=call.params,
            data=call.body,
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=call.seconds, sock_connect=CONNECT_SECONDS),
            ssl=self._context(shown),
            server_hostname=self.access.trust.server_name or None,
            proxy=self.access.proxy or None,
            allow_redirects=False,
        )

    def _context(self, shown: Credential) -> ssl.SSLContext | bool:
        if self._tls is None:
            return True
        try:
            return self._tls.context(shown)
        except (OSError, ValueError) as error:
            raise KubeError(
                f"certificates for {self.access.server}: {error}", reason="tls"
            ) from error
