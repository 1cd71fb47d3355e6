"""Requests through a real Envoy, and their copies at a shadow pool whose own picker chooses."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from epp.gateway.options import GatewayOptions
from epp.local import fleet
from epp.local.processes import Child, epp, running
from tests.support.serving import eventually
from tests.support.stack import metrics_of

pytestmark = pytest.mark.e2e

MODEL = "m"
MARKER = "marker-7f3a"
ALLOWED, OTHER = "bank", "stranger"
TALKS, TURNS = 6, 3
ENGINES = {"real": 1, "shadow": 2}
DESTINATION = "x-gateway-destination-endpoint"


class Tap:
    """Stands between Envoy and the mirror, and keeps the headers of what Envoy sends."""

    def __init__(self, mirror: str) -> None:
        self.copies: list[dict[str, str]] = []
        self._mirror = mirror

    async def pass_on(self, request: web.Request) -> web.Response:
        self.copies.append(dict(request.headers))
        sent = {
            name: value
            for name, value in request.headers.items()
            if name not in ("Host", "Transfer-Encoding")
        }
        async with (
            aiohttp.ClientSession() as http,
            http.post(
                self._mirror + request.raw_path, headers=sent, data=await request.read()
            ) as answer,
        ):
            return web.Response(status=answer.status)

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self.pass_on)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            yield f"127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()


class Site:
    """Two pools, each with its own gateway and picker, and a mirror from one to the other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.urls: dict[str, str] = {}
        self.engines: dict[str, list[str]] = {}
        self.pickers: dict[str, fleet.Picker] = {}
        self.mirror = ""
        self.child: Child
        self.tap: Tap

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Site]:
        async with contextlib.AsyncExitStack() as stack:
            await self._pool("shadow", stack, mirror="")
            command = epp(
                "traffic", "mirror", f"--to={self.urls['shadow']}", f"--tenants={ALLOWED}",
                "--share=1", "--listen-port=0",
            )  # fmt: skip
            self.child = await stack.enter_async_context(
                running(command, self.folder / "mirror.log")
            )
            self.mirror = self.child.first_line.rsplit(" ", 1)[-1].strip()
            self.tap = Tap(self.mirror)
            await self._pool(
                "real", stack, mirror=await stack.enter_async_context(self.tap.listening())
            )
            yield self

    async def _pool(self, name: str, stack: contextlib.AsyncExitStack, *, mirror: str) -> None:
        folder = self.folder / name
        folder.mkdir()
        enter = stack.enter_async_context
        self.engines[name] = await enter(fleet.engines(ENGINES[name], folder, f"--models={MODEL}"))
        self.pickers[name] = await enter(fleet.picker(self.engines[name], folder))
        options = GatewayOptions(
            picker_host="127.0.0.1", picker_port=self.pickers[name].ports.grpc, picker_tls=False,
            mirror=mirror,
        )  # fmt: skip
        self.urls[name] = (await enter(fleet.gateway(options, folder))).url

    async def ask(self, http: aiohttp.ClientSession, tenant: str, talk: int, turn: int) -> int:
        text = f"{MARKER} {talk} " + "word " * 400 * (turn + 1)
        body = {"model": MODEL, "prompt": text, "max_tokens": 2}
        headers = {
            "x-session-id": f"{tenant}-{talk}", "x-gateway-inference-fairness-id": tenant,
            "authorization": f"Bearer {MARKER}",
        }  # fmt: skip
        url = f"{self.urls['real']}/v1/completions"
        async with http.post(url, json=body, headers=headers) as answer:
            await answer.read()
            return answer.status

    async def page(self, url: str) -> dict[str, float]:
        async with aiohttp.ClientSession() as http, http.get(url) as answer:
            return metrics_of(await answer.text())

    async def picked(self, name: str) -> float:
        """How many requests the picker of a pool was asked about."""
        page = await self.page(f"http://127.0.0.1:{self.pickers[name].ports.admin}/metrics")
        return sum(value for key, value in page.items() if "epp_ended_requests_total" in key)

    async def mirrored(self) -> dict[str, float]:
        page = await self.page(f"{self.mirror}/-/metrics")
        start = 'epp_mirror_requests_total{outcome="'
        return {
            key.removeprefix(start)[:-2]: value
            for key, value in page.items() if key.startswith(start)
        }  # fmt: skip

    async def hits(self, name: str) -> float:
        """Cached tokens that the engines of a pool found."""
        pages = [await self.page(f"http://{each}/metrics") for each in self.engines[name]]
        return sum(
            value for page in pages for key, value in page.items()
            if key.startswith("vllm:prefix_cache_hits_total")
        )  # fmt: skip


async def is_at_least(count: Any, wanted: float) -> bool:
    return bool(await count() >= wanted)


async def story(site: Site) -> None:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as http:
        for turn in range(TURNS):
            for talk in range(TALKS):
                assert await site.ask(http, ALLOWED, talk, turn) == 200
                copies = TALKS * turn + talk + 1  # one after the other, as the real pool is asked
                await eventually(lambda copies=copies: is_at_least(lambda: _answered(site), copies))
        assert await site.ask(http, OTHER, 0, 0) == 200
        await eventually(lambda: is_at_least(lambda: _refused_tenants(site), 1))
        await _check_copies(site)
        await _check_that_nothing_waits_for_the_mirror(site, http)


async def _answered(site: Site) -> float:
    return (await site.mirrored()).get("answered", 0.0)


async def _refused_tenants(site: Site) -> float:
    return (await site.mirrored()).get("tenant", 0.0)


async def _check_copies(site: Site) -> None:
    asked = TALKS * TURNS + 1
    # Envoy's mirror alone: the copy carries the choice of the real pool's picker, which was asked
    # once for each request, and never about a copy.
    assert len(site.tap.copies) == asked
    for copy in site.tap.copies:
        assert {name.lower(): value for name, value in copy.items()}[DESTINATION] in (
            site.engines["real"]
        )
        assert copy["Host"].split(":")[0].endswith("-shadow")
    await eventually(lambda: is_at_least(lambda: site.picked("real"), asked))
    assert await site.picked("real") == asked
    # Through `epp traffic mirror`: the shadow pool's picker chose for each copy, and well.
    await eventually(lambda: is_at_least(lambda: site.picked("shadow"), asked - 1))
    assert await site.picked("shadow") == asked - 1
    assert await site.mirrored() == {"answered": asked - 1, "tenant": 1}
    # Not as well: a copy of a turn may be asked before the copy of the one before is answered.
    assert await site.hits("shadow") >= 0.5 * await site.hits("real") > 0


async def _check_that_nothing_waits_for_the_mirror(site: Site, http: aiohttp.ClientSession) -> None:
    os.kill(site.child.process.pid, signal.SIGSTOP)
    try:
        assert [await site.ask(http, ALLOWED, talk, 0) for talk in range(20)] == [200] * 20
    finally:
        os.kill(site.child.process.pid, signal.SIGCONT)
    site.child.process.kill()
    assert [await site.ask(http, ALLOWED, talk, 0) for talk in range(5)] == [200] * 5


def test_copies_go_where_the_shadow_pools_picker_chooses_and_no_client_waits_for_them(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with Site(tmp_path).running() as site:
            await story(site)

    asyncio.run(asyncio.wait_for(main(), 240.0))
    for log in tmp_path.rglob("*"):
        if log.is_file():
            assert MARKER not in log.read_text(errors="replace"), log
