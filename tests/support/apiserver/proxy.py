"""An HTTP proxy before any API server that fails in the ways that API servers do."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from typing import Any, Self

import msgspec
from aiohttp import web

from epp.kube.client import Call, Kube
from epp.kube.errors import KubeError
from epp.kube.identity.credentials import Credential, Fixed
from tests.support.cluster.server import Server

CALL_SECONDS, WATCH_SECONDS = 30.0, 600.0
EXPIRED = "too old resource version: 1 (2)"


class _Watch:
    """One open watch."""

    def __init__(self, answer: web.StreamResponse, transport: asyncio.Transport) -> None:
        self.answer = answer
        self.transport = transport
        self.over = asyncio.Event()
        self.last = b""  #: said before it ends


class Proxy:
    """The proxy; an async context manager. `before` puts it in front of a server."""

    def __init__(self) -> None:
        self.status = 0  #: every request is answered with it; 0: none is
        self.watches: set[_Watch] = set()
        self._server: Server | None = None
        self._clients: dict[str, Kube] = {}
        self._open = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.05, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return self

    async def __aexit__(self, *error: object) -> None:
        self.cut()
        await self._runner.cleanup()
        await self._open.aclose()

    def before(self, server: Server) -> Server:
        """The same server by way of us."""
        self._server = server
        port = self._runner.addresses[0][1]
        return Server(server.access, {"server": f"http://127.0.0.1:{port}"}, server.fake)

    @contextlib.contextmanager
    def refusing(self, status: int) -> Iterator[None]:
        """Answer everything with ``status``, and end what is open."""
        self.status = status
        self.end()
        try:
            yield
        finally:
            self.status = 0

    def end(self, code: int = 0) -> None:
        """End all watches, with an ERROR event if there is a code."""
        for watch in self.watches:
            watch.last = _error(code) if code else b""
            watch.over.set()

    def cut(self, *, mid_line: bool = False) -> None:
        """Reset all watches, perhaps in the middle of a line."""
        for watch in list(self.watches):
            if mid_line:
                half = b'{"type":"MODIFIED","object":{"kind":"Pod","meta'
                watch.transport.write(b"%x\r\n" % (len(half) + 50) + half)
            watch.transport.close() if mid_line else watch.transport.abort()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if self.status:
            headers = {"Retry-After": "1"} if self.status == 429 else {}
            body = _status(self.status, EXPIRED if self.status == 410 else "not at the moment")
            return web.json_response(body, status=self.status, headers=headers)
        watch = "watch" in request.query
        call = Call(
            request.method,
            request.path,
            dict(request.query),
            await request.read() or None,
            request.headers.get("Content-Type", "application/json"),
            WATCH_SECONDS if watch else CALL_SECONDS,
        )
        kube = await self._client(request.headers.get("Authorization", ""))
        try:
            if watch:
                return await self._watch(request, kube, call)
            return web.Response(body=await kube.read(call), content_type="application/json")
        except KubeError as error:
            code = error.status or 503
            body = _status(code, str(error), error.reason)
            return web.json_response(body, status=code)

    async def _client(self, shown: str) -> Kube:
        assert self._server is not None
        if shown not in self._clients:
            token = shown.removeprefix("Bearer ")
            access = msgspec.structs.replace(
                self._server.access, credentials=Fixed(Credential(token))
            )
            self._clients[shown] = await self._open.enter_async_context(Kube(access))
        return self._clients[shown]

    async def _watch(self, request: web.Request, kube: Kube, call: Call) -> web.StreamResponse:
        async with kube.stream(call) as source:
            answer = web.StreamResponse(headers={"Content-Type": "application/json"})
            await answer.prepare(request)
            assert request.transport is not None
            watch = _Watch(answer, request.transport)
            self.watches.add(watch)
            over = asyncio.ensure_future(watch.over.wait())
            passing = asyncio.ensure_future(_pass(source, answer))
            try:
                await asyncio.wait((over, passing), return_when=asyncio.FIRST_COMPLETED)
                if watch.last:
                    await answer.write(watch.last)
            finally:
                self.watches.discard(watch)
                over.cancel()
                passing.cancel()
                await asyncio.gather(over, passing, return_exceptions=True)
        return answer


async def _pass(source: Any, answer: web.StreamResponse) -> None:
    async for piece in source.content.iter_any():
        await answer.write(piece)


def _status(code: int, message: str, reason: str = "") -> dict[str, Any]:
    reason = reason or {410: "Expired", 429: "TooManyRequests"}.get(code, "InternalError")
    return {"kind": "Status", "apiVersion": "v1", "status": "Failure", "metadata": {},
            "message": message, "reason": reason, "code": code}  # fmt: skip


def _error(code: int) -> bytes:
    event = {"type": "ERROR", "object": _status(code, EXPIRED)}
    return json.dumps(event).encode() + b"\n"
