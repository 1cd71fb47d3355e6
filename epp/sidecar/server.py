"""A running sidecar: its ports, who may be asked, health, and the end."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import uvloop
from aiohttp import web
from prometheus_client import generate_latest

from epp.disagg.connectors import CONNECTORS
from epp.model import join_host_port
from epp.pool import Pool
from epp.process.server_tls import server_context
from epp.process.stopping import stopping
from epp.serve.options import ServeOptions
from epp.serve.origin import Origin, Told, origin_of
from epp.sidecar.allowed import Allowed
from epp.sidecar.head import Address
from epp.sidecar.legs.engine import Engine
from epp.sidecar.legs.outbound import LINE_BYTES, Outbound
from epp.sidecar.legs.prefill import Prefills
from epp.sidecar.metrics import Metrics
from epp.sidecar.options import SidecarOptions
from epp.sidecar.proxy import Proxy
from epp.telemetry import log as logs
from epp.telemetry.http_faults import http_log

LOOK_SECONDS = 0.05  #: between two looks at what is left, when ending
LINGER = 1.0  #: seconds for which requests may still come after the end was asked for

log = logging.getLogger(__name__)


class Sidecar:
    """One sidecar. Use `start` and `stop` on the same running event loop."""

    def __init__(self, options: SidecarOptions) -> None:
        """Build it; nothing is opened yet.

        Raises:
            ConfigError: options exclude each other, or a file cannot be read.
        """
        options.check()
        self.metrics = Metrics()
        self.ports: list[int] = []  #: by rank; then that of the metrics, if there is one
        self._options = options
        self._origin = _origin(options)
        self._pool = Pool()
        files = Path(options.cert_path) if options.cert_path else None
        self._tls = server_context(files, port="sidecar") if options.secure_proxy else None
        self._draining = False
        self._open = AsyncExitStack()

    async def start(self) -> None:
        """Listen.

        Raises:
            OSError: an address cannot be bound.
        """
        options = self._options
        if self._origin is not None:
            self._origin.load(self._pool)
            following = asyncio.create_task(self._follow(self._origin))
            self._open.callback(following.cancel)
        outbound = await self._open.enter_async_context(Outbound(options))
        host, first = options.model_server_host, options.model_server_port
        engines = [
            Engine(outbound, Address(host, first + rank), metrics=self.metrics)
            for rank in range(options.data_parallel_size)
        ]
        self._engines = engines
        for engine in engines:
            self._open.push_async_callback(engine.trust.close)
        connector = CONNECTORS[options.kv_connector]
        self.proxy = Proxy(
            options,
            prefills=Prefills(outbound, connector, options=options, metrics=self.metrics),
            engines=engines,
            allowed=self._allowed(),
            metrics=self.metrics,
        )
        for rank in range(len(engines)):
            port = options.port + rank if options.port else 0
            self.ports.append(await self._listen(self._serve(rank), port, secure=True))
        if options.metrics_port:
            self.ports.append(await self._listen(self._pages, options.metrics_port, secure=False))

    async def stop(self) -> None:
        """Say that nothing new is wanted, let what is under way end in time, and close."""
        self._draining = True
        loop = asyncio.get_running_loop()
        began = loop.time()
        while (passed := loop.time() - began) < self._options.drain_timeout:
            if passed >= min(LINGER, self._options.drain_timeout) and not self.proxy.in_flight:
                break
            await asyncio.sleep(LOOK_SECONDS)
        await self.close()

    async def close(self) -> None:
        """Close at once what was opened."""
        await self._open.aclose()

    async def _follow(self, origin: Origin) -> None:
        """Keep the pool; whatever ends that, who was allowed stays so, and others are refused."""
        try:
            await origin.run(self._pool)
        except Exception:
            log.exception("the endpoints that may be asked are not followed any longer")

    def _allowed(self) -> Allowed:
        pool = None if self._origin is None else self._pool
        return Allowed(pool, any_port=not self._options.allowed_prefillers)

    async def _listen(
        self,
        handle: Callable[[web.Request], Awaitable[web.StreamResponse]],
        port: int,
        *,
        secure: bool,
    ) -> int:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", handle)
        runner = web.AppRunner(
            app,
            handler_cancellation=True,
            access_log=None,
            logger=http_log,
            auto_decompress=False,
            shutdown_timeout=LINGER,
            max_line_size=LINE_BYTES,
            max_field_size=LINE_BYTES,
        )
        await runner.setup()
        self._open.push_async_callback(runner.cleanup)
        tls = self._tls if secure else None
        await web.TCPSite(runner, self._options.host, port, ssl_context=tls, backlog=1024).start()
        return int(runner.addresses[0][1])

    def _serve(self, rank: int) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def serve(request: web.Request) -> web.StreamResponse:
            if request.method == "GET" and request.path == "/health":
                return web.Response(status=await self._health(self._engines[rank]))
            return await self.proxy.handle(request, rank)

        return serve

    async def _health(self, engine: Engine) -> int:
        """Return 503 unless requests are wanted, else what the engine says."""
        if self._draining or (self._origin is not None and not self._pool.synced):
            return 503
        return await engine.healthy()

    async def _pages(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/metrics":
            text = generate_latest(self.metrics.registry)
            return web.Response(body=text, headers={"content-type": "text/plain; version=0.0.4"})
        if request.path == "/healthz":
            return web.Response(text="ok\n")
        if request.path == "/readyz":
            return web.Response(status=await self._health(self._engines[0]))
        return web.Response(status=404)


def _origin(options: SidecarOptions) -> Origin | None:
    """Return what tells whom the sidecar may ask; None if it may ask everybody."""
    if not options.enable_ssrf_protection:
        return None
    namespace, _, name = options.inference_pool.partition("/")
    told = ServeOptions(
        endpoints=options.allowed_prefillers,
        pool_name=name,
        pool_namespace=namespace,
        pool_group=options.pool_group,
        kubeconfig=options.kubeconfig,
    )
    return origin_of(told, (), Told(log.warning, None))


def run(options: SidecarOptions, warnings: Sequence[str] = ()) -> int:
    """Serve until SIGTERM or SIGINT; says where on one line of stdout. Makes its own event loop.

    Raises:
        ConfigError: options exclude each other, or a file cannot be read.
        OSError: an address cannot be bound.
    """
    logs.set_up(options.verbosity, options.log_format)
    for warning in warnings:
        log.warning(warning)
    uvloop.run(_serve(Sidecar(options), options))
    return 0


async def _serve(sidecar: Sidecar, options: SidecarOptions) -> None:
    told = stopping()
    try:
        await sidecar.start()
    except OSError:
        await sidecar.close()
        raise
    scheme = "https" if options.secure_proxy else "http"
    sys.stdout.write(f"listening on {scheme}://{join_host_port(options.host, sidecar.ports[0])}\n")
    sys.stdout.flush()
    await told.wait()
    await sidecar.stop()
