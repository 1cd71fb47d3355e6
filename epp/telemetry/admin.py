"""The admin port: metrics, health and what the picker knows, for operators.

A browser gets the live page at ``/``, anything else a list of what there is.
``/healthz`` says that the process lives, whatever the pool does; ``/readyz`` that it may get
traffic, with ``?pool=`` that one of many pools may. The pages under ``/debug`` show settings,
endpoints and plugins' numbers: no prompt, no header, no key. There is no profiler. Big pages are
encoded in a thread, so that no scrape of ours stops a request.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol

import msgspec
from aiohttp import web

from epp.model import Endpoint
from epp.page import document
from epp.telemetry.http_faults import http_log
from epp.telemetry.metrics import Metrics
from epp.telemetry.text import encode_json

GRACE_SECONDS = 1.0  #: for open requests when the port closes
SECRET_WORDS = ("password", "secret", "token", "credential", "authorization", "api_key", "apikey")
HIDDEN = "(hidden)"
DECISIONS = "20"  #: shown unless told otherwise
NOT_SECRET = frozenset({"tokens", "max_tokens"})

Page = Callable[[], Any]
Middleware = Callable[..., Coroutine[Any, Any, web.StreamResponse]]  #: see `web.middleware`


class Live(Protocol):
    """The numbers of the live page, as JSON."""

    def __call__(self, *, ready: bool) -> Coroutine[Any, Any, bytes]: ...


class Decisions(Protocol):
    """Tells what was decided (see `observe.receipts`)."""

    def last(self, limit: int) -> Any:
        """Return the last ``limit`` decisions, the newest first."""
        ...

    def find(self, request_id: str) -> Any | None:
        """Return the newest decision about a request; None if it is not kept."""
        ...


class AdminPages(msgspec.Struct, frozen=True):
    """What the pages show; each is asked when its page is read."""

    ready: Callable[[], bool]
    config: Page  #: anything `msgspec` can encode
    endpoints: Callable[[], tuple[Endpoint, ...]]
    plugins: Callable[
        [], Mapping[str, Any]
    ]  #: instances by name; those with ``dump_state`` show it
    in_flight: Callable[[Endpoint], Mapping[str, int]] = lambda _: {}
    state: Page = dict  #: the process's own counts: streams, open exchanges, buffered bytes
    live: Live | None = None  #: None: there is no live page
    decisions: Decisions | None = None  #: None: they are not kept


class AdminServer:
    """Serves the pages."""

    def __init__(
        self,
        host: str,
        port: int,
        metrics: Metrics,
        pages: AdminPages,
        *,
        middlewares: Sequence[Middleware] = (),
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Serve on ``host``; ``port`` 0 takes a free one. ``tls`` None is plain HTTP."""
        self.port = port  #: where it listens, once started
        self.pools: Callable[[], Mapping[str, AdminPages]] = dict
        """The pages of single pools, which ``?pool=NAME`` asks for."""
        self._host = host
        self._metrics = metrics
        self._pages = pages
        self._middlewares = middlewares
        self._tls = tls
        self._document = document.load()
        self._rendering = asyncio.Lock()
        self._runner: web.AppRunner | None = None

    async def start(self) -> int:
        """Listen; return the port.

        Raises:
            OSError: the address cannot be bound.
        """
        runner = web.AppRunner(
            self._app(), access_log=None, logger=http_log, shutdown_timeout=GRACE_SECONDS
        )
        await runner.setup()
        try:
            await web.TCPSite(runner, self._host, self.port, ssl_context=self._tls).start()
        except BaseException:
            await runner.cleanup()
            raise
        self._runner = runner
        self.port = int(runner.addresses[0][1])
        return self.port

    async def stop(self) -> None:
        """Close the port; not started is not an error."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    def _app(self) -> web.Application:
        app = web.Application(client_max_size=0, middlewares=self._middlewares)
        app.router.add_get("/", self._index)
        app.router.add_get("/metrics", self._get_metrics)
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/debug/config", self._config)
        app.router.add_get("/debug/pool", self._pool)
        app.router.add_get("/debug/state", self._state)
        app.router.add_get("/debug/plugins/state", self._plugins)
        app.router.add_get("/debug/live", self._live)
        app.router.add_get("/debug/decisions", self._decisions)
        app.router.add_get("/debug/explain", self._explain)
        return app

    def _asked(self, request: web.Request) -> AdminPages:
        """The pages that a request is for."""
        pool = request.query.get("pool", "")
        if not pool:
            return self._pages
        pages = self.pools().get(pool)
        if pages is None:
            said = encode_json({"error": f"no pool {pool:.80} is served here"}).decode()
            raise web.HTTPNotFound(text=said, content_type="application/json")
        return pages

    async def _index(self, request: web.Request) -> web.Response:
        html = "text/html" in request.headers.get("Accept", "")
        if html and self._asked(request).live is not None:
            return web.Response(
                body=self._document.body, content_type="text/html", charset="utf-8",
                headers={
                    "Content-Security-Policy": self._document.policy,
                    "Cache-Control": "no-cache",
                    "Vary": "Accept",
                    "X-Content-Type-Options": "nosniff",
                    "Referrer-Policy": "no-referrer",
                },
            )  # fmt: skip
        paths = sorted({resource.canonical for resource in request.app.router.resources()} - {"/"})
        pools = [f"/?pool={name}" for name in sorted(self.pools())]
        return web.Response(text="\n".join(["epp", *paths, *pools, ""]))

    async def _get_metrics(self, request: web.Request) -> web.Response:
        for _ in self._metrics.refreshing():
            await asyncio.sleep(0)
        accept = request.headers.get("Accept", "")
        async with self._rendering:  # one page at a time: it is big, and threads share the CPU
            page, content_type = await asyncio.to_thread(self._metrics.render, accept)
        return web.Response(body=page, headers={"Content-Type": content_type})

    async def _healthz(self, request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, request: web.Request) -> web.Response:
        ready = self._asked(request).ready()
        return web.Response(text="ok\n" if ready else "not ready\n", status=200 if ready else 503)

    async def _config(self, request: web.Request) -> web.Response:
        config = self._asked(request).config()
        return _json(without_secrets(msgspec.to_builtins(config, enc_hook=str)))

    async def _pool(self, request: web.Request) -> web.Response:
        pages = self._asked(request)
        return _json([_endpoint(endpoint, pages) for endpoint in pages.endpoints()])

    async def _live(self, request: web.Request) -> web.Response:
        pages = self._asked(request)
        if pages.live is None:
            served = ", ".join(sorted(self.pools())) or "none"
            return _json({"error": f"which pool? Say pool=NAME: {served}"}, status=404)
        body = await pages.live(ready=pages.ready())
        return web.Response(body=body, content_type="application/json")

    async def _state(self, request: web.Request) -> web.Response:
        return _json(self._pages.state())

    async def _decisions(self, request: web.Request) -> web.Response:
        limit = request.query.get("limit", DECISIONS)
        if not limit.isdecimal() or len(limit) > len("100000"):
            return _json({"error": f"limit={limit:.20} is no number of decisions"}, status=400)
        decisions = self._asked(request).decisions
        return _json([] if decisions is None else decisions.last(int(limit)))

    async def _explain(self, request: web.Request) -> web.Response:
        wanted, decisions = request.query.get("request_id", ""), self._asked(request).decisions
        if not wanted:
            return _json({"error": "which? Say ?request_id=ID"}, status=400)
        if decisions is None:
            return _json({"error": "decisions are not kept: see --receipts"}, status=404)
        found = decisions.find(wanted)
        if found is None:
            return _json({"error": f"no decision about {wanted:.80} is kept"}, status=404)
        return _json(found)

    async def _plugins(self, request: web.Request) -> web.Response:
        plugins = self._asked(request).plugins()
        return _json({name: _state(each) for name, each in plugins.items()
                      if hasattr(each, "dump_state")})  # fmt: skip


def _endpoint(endpoint: Endpoint, pages: AdminPages) -> Mapping[str, Any]:
    shown = msgspec.to_builtins(endpoint, enc_hook=str, order="deterministic")
    return {**shown, "address": endpoint.address, **pages.in_flight(endpoint)}


def without_secrets(value: Any) -> Any:
    """Return ``value`` with the values of keys that look secret replaced."""
    if isinstance(value, Mapping):
        return {
            key: HIDDEN if _is_secret(str(key)) and inner else without_secrets(inner)
            for key, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [without_secrets(inner) for inner in value]
    return value


def _is_secret(key: str) -> bool:
    words = key.lower().replace("-", "_")
    if words.endswith("tokens") or words in NOT_SECRET:
        return False
    return any(words.endswith(word) for word in SECRET_WORDS)


def _state(plugin: Any) -> Any:
    try:
        return plugin.dump_state()
    except Exception as error:  # noqa: BLE001 - one plugin's bug must not hide the others
        return {"error": type(error).__name__}


def _json(value: Any, *, status: int = 200) -> web.Response:
    body = msgspec.json.format(encode_json(value), indent=2)
    return web.Response(body=body, status=status, content_type="application/json")
