"""Takes Envoy's copies of requests and asks some again of a shadow gateway.

Envoy sends a copy where it sent the original, or to any host of a cluster: its request mirror is
below the filters, so no picker is asked about it. Here a copy becomes a request of its own, and
the shadow gateway's picker chooses. Envoy is answered at once and drops the answer; what the
shadow pool answers is read and dropped too.
"""

from __future__ import annotations

import asyncio
import contextlib

import aiohttp
import yarl
from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.exposition import generate_latest

from epp.telemetry.http_faults import http_log
from epp.traffic.mirror.options import MirrorOptions
from epp.traffic.mirror.sampling import Sampling, forwarded

CLOSE_SECONDS = 1.0
METRICS_PATH = "/-/metrics"  #: a model server's /metrics may be asked through the gateway


class Mirror:
    """A running mirror: ``start``, then ``close``.

    Args:
        options: where to listen and where to ask.
        sampling: which requests.
    """

    _http: aiohttp.ClientSession  #: from ``start`` on

    def __init__(self, options: MirrorOptions, sampling: Sampling) -> None:
        self.registry = CollectorRegistry()
        self._options = options
        self._sampling = sampling
        self._tasks: set[asyncio.Task[None]] = set()
        self._runner: web.AppRunner | None = None
        self._requests = Counter(
            "epp_mirror_requests", "Copies that came, by what became of them.", ["outcome"],
            registry=self.registry,
        )  # fmt: skip
        Gauge(
            "epp_mirror_in_flight", "Copies at the shadow gateway.", registry=self.registry
        ).set_function(lambda: len(self._tasks))

    async def start(self) -> str:
        """Listen; return the URL."""
        app = web.Application(client_max_size=self._options.body_bytes)
        app.router.add_get(METRICS_PATH, self._metrics)
        app.router.add_route("*", "/{path:.*}", self._copy)
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self._options.in_flight),
            timeout=aiohttp.ClientTimeout(total=self._options.timeout),
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        # A body goes on as it came, compressed or not.
        self._runner = web.AppRunner(
            app, access_log=None, shutdown_timeout=CLOSE_SECONDS, auto_decompress=False,
            logger=http_log,
        )  # fmt: skip
        await self._runner.setup()
        where = (self._options.listen_host, self._options.listen_port)
        await web.TCPSite(self._runner, *where).start()
        host, port = self._runner.addresses[0][:2]
        return f"http://{host}:{port}"

    async def close(self) -> None:
        """Listen no more; copies under way are given up."""
        if self._runner is None:
            return
        await self._runner.cleanup()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CLOSE_SECONDS)
        await self._http.close()

    async def _metrics(self, _request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self.registry), content_type="text/plain")

    async def _copy(self, request: web.Request) -> web.Response:
        """Answer at once; what is to be asked again is a task's."""
        try:
            body = await request.read()
        except web.HTTPRequestEntityTooLarge:
            self._count("too_large")
            return web.Response(status=204)
        headers = {name.lower(): value for name, value in request.headers.items()}
        verdict = self._sampling.judge(headers, body)
        if verdict != "copy":
            self._count(verdict)
        elif len(self._tasks) >= self._options.in_flight:
            self._count("full")
        else:
            url = yarl.URL(self._options.to.rstrip("/") + request.raw_path, encoded=True)
            task = asyncio.create_task(self._ask(request.method, url, headers, body), name="mirror")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return web.Response(status=204)

    async def _ask(self, method: str, url: yarl.URL, headers: dict[str, str], body: bytes) -> None:
        """Ask the shadow gateway; read its answer to the end, so that it costs what it costs."""
        outcome = "failed"
        with contextlib.suppress(aiohttp.ClientError, TimeoutError, ValueError):
            async with self._http.request(
                method, url, headers=forwarded(headers), data=body, allow_redirects=False
            ) as answer:
                async for _piece in answer.content.iter_any():
                    pass
                outcome = "answered" if answer.status < 400 else "refused"
        self._count(outcome)

    def _count(self, outcome: str) -> None:
        self._requests.labels(outcome).inc()
