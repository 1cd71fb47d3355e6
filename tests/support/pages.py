"""Model servers that only serve ``/metrics``, on loopback, and say how often they were asked."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncIterator, Callable

from aiohttp import web

from epp.collect.scrape import Reports

BOUND_SECONDS = 10.0


def vllm(
    *, queued: float = 0, running: float = 0, usage: float = 0.0, started: float | None = None
) -> str:
    """A page of a vLLM server with these numbers."""
    lines = [
        f'vllm:num_requests_waiting{{engine="0"}} {queued}',
        f'vllm:num_requests_running{{engine="0"}} {running}',
        f'vllm:kv_cache_usage_perc{{engine="0"}} {usage}',
    ]
    if started is not None:
        lines.append(f"process_start_time_seconds {started}")
    return "\n".join([*lines, ""])


class PageServer:
    """One server; change its fields while it runs."""

    def __init__(self, page: str = "", *, status: int = 200) -> None:
        self.page = page or vllm()
        self.status = status
        self.headers: dict[str, str] = {}
        self.hang = False  #: never answer
        self.asked = 0
        self.port = 0
        self._runner: web.AppRunner | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self, tls: ssl.SSLContext | None = None) -> None:
        """Listen; again on the same port after `stop`."""
        app = web.Application()
        app.router.add_get("/{path:.*}", self._answer)
        self._runner = web.AppRunner(
            app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True
        )
        await self._runner.setup()
        await web.TCPSite(
            self._runner, "127.0.0.1", self.port, ssl_context=tls, reuse_address=True
        ).start()
        self.port = int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        self.asked += 1
        if self.hang:
            await asyncio.sleep(3600)
        return web.Response(text=self.page, status=self.status, headers=self.headers)


@contextlib.asynccontextmanager
async def servers(*them: PageServer, tls: ssl.SSLContext | None = None) -> AsyncIterator[None]:
    """Run them all; none is left behind."""
    try:
        for each in them:
            await each.start(tls)
        yield
    finally:
        for each in them:
            await each.stop()


async def until(condition: Callable[[], bool], seconds: float = BOUND_SECONDS) -> None:
    """Return when ``condition`` holds; fail the test if it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        await asyncio.sleep(0.005)


class Heard(Reports):
    """Keeps what a scraper reports."""

    def __init__(self) -> None:
        self.reasons: list[str] = []
        self.warnings: list[str] = []

    def scrape_failed(self, reason: str) -> None:
        self.reasons.append(reason)

    def warn(self, text: str) -> None:
        self.warnings.append(text)


@contextlib.asynccontextmanager
async def running(*collectors: object) -> AsyncIterator[None]:
    """Run coroutines beside the test; cancelled at its end, and their errors raised."""
    tasks = [asyncio.ensure_future(each) for each in collectors]  # type: ignore[arg-type,var-annotated]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        for result in done:
            if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError):
                raise result
