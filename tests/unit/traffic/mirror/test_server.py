"""The mirror over loopback: what it refuses to copy it counts, and it answers before it asks."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Mapping

import aiohttp
import yarl
from aiohttp import web

from epp.traffic.mirror.options import MirrorOptions
from epp.traffic.mirror.sampling import Sampling
from epp.traffic.mirror.server import METRICS_PATH, Mirror
from tests.support.serving import eventually


class Shadow:
    """A shadow gateway that answers once it is let."""

    def __init__(self) -> None:
        self.let = asyncio.Event()
        self.seen: list[tuple[str, str, bytes, Mapping[str, str]]] = []
        self.status = 200

    async def answer(self, request: web.Request) -> web.Response:
        self.seen.append((request.method, request.raw_path, await request.read(), request.headers))
        await self.let.wait()
        return web.Response(status=self.status, body=b"x" * 100_000)


async def outcomes(http: aiohttp.ClientSession, url: str) -> dict[str, float]:
    async with http.get(url + METRICS_PATH) as answer:
        lines = (await answer.text()).splitlines()
    start = 'epp_mirror_requests_total{outcome="'
    found = (line.removeprefix(start).split('"} ') for line in lines if line.startswith(start))
    return {name: float(value) for name, value in found}


async def story() -> None:
    shadow = Shadow()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", shadow.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    options = MirrorOptions(
        to=f"http://127.0.0.1:{runner.addresses[0][1]}", tenants=frozenset({"a"}), share=1.0,
        listen_port=0, in_flight=2, body_bytes=1000,
    )  # fmt: skip
    mirror = Mirror(options, Sampling(options.tenants, options.share, b"k" * 32))
    url = await mirror.start()
    try:
        async with aiohttp.ClientSession() as http:
            await _asked(http, url, shadow)
    finally:
        await mirror.close()
        await runner.cleanup()


async def _asked(http: aiohttp.ClientSession, url: str, shadow: Shadow) -> None:
    async def ask(size: int, headers: Mapping[str, str]) -> int:
        path = yarl.URL(url + "/v1/completions?a=%2F", encoded=True)
        async with http.post(path, data=b"x" * size, headers=headers) as answer:
            assert await answer.read() == b""
            return answer.status

    allowed = {"x-gateway-inference-fairness-id": "a", "authorization": "Bearer b"}
    for headers in (allowed, allowed, allowed, allowed | {"x-epp-mirrored": "1"}, {}):
        assert await ask(10, headers) == 204  # although the shadow gateway answers nobody yet
    assert await ask(1001, allowed) == 204
    assert await outcomes(http, url) == {"full": 1, "loop": 1, "tenant": 1, "too_large": 1}
    shadow.let.set()
    await eventually(lambda: _has(http, url, answered=2.0))
    shadow.status = 503
    assert await ask(10, allowed) == 204
    await eventually(lambda: _has(http, url, refused=1.0))
    shadow.status = 200
    packed = allowed | {"content-encoding": "gzip"}
    async with http.post(
        yarl.URL(url + "/v1/completions?a=%2F", encoded=True),
        data=gzip.compress(b"x" * 10),
        headers=packed,
    ):
        pass
    await eventually(lambda: _has(http, url, answered=3.0))  # which undid what the header says
    assert len(shadow.seen) == 4
    for method, path, body, headers in shadow.seen:
        assert (method, path, body) == ("POST", "/v1/completions?a=%2F", b"x" * 10)
        assert headers["x-epp-mirrored"] == "1"
        assert "authorization" not in headers


async def _has(http: aiohttp.ClientSession, url: str, **wanted: float) -> bool:
    found = await outcomes(http, url)
    return all(found.get(name) == value for name, value in wanted.items())


def test_a_mirror_answers_at_once_copies_no_more_than_it_may_and_counts_the_rest() -> None:
    asyncio.run(asyncio.wait_for(story(), 60.0))
