"""A sidecar in this process, between simulated prefill engines and a decode engine."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

import aiohttp
import msgspec
from aiohttp import web
from prometheus_client import CollectorRegistry

from epp.sidecar.options import SidecarOptions
from epp.sidecar.server import Sidecar
from epp.sim import tokenizer
from epp.sim.options import EngineOptions
from epp.sim.server import EngineServer
from tests.support import engine

PROMPT = tokenizer.text(400)
#: 50 times faster than life; leases and time-outs are as long as there, for slow machines.
PREFILL = EngineOptions(name="p", role="prefill", speed=50.0, kv_lease_duration=1500.0)
DECODE = EngineOptions(name="d", role="decode", speed=50.0, kv_connect_timeout=250.0)
Servers = list[tuple[EngineServer, int]]


class Bench:
    """Prefill engines, a decode engine, its sidecar, and a client."""

    def __init__(self, sidecar: Sidecar, servers: Servers, http: aiohttp.ClientSession) -> None:
        self.sidecar = sidecar
        self.http = http
        self.decode, self.decode_port = servers[-1]
        self.prefills = [server for server, _ in servers[:-1]]
        self.addresses = [f"127.0.0.1:{port}" for _, port in servers[:-1]]

    @property
    def prefill(self) -> EngineServer:
        return self.prefills[0]

    def url(self, path: str = "/v1/completions") -> str:
        return f"http://127.0.0.1:{self.sidecar.ports[0]}{path}"

    def head(self, endpoints: Sequence[str] | None = None) -> dict[str, str]:
        """Headers as the picker sets them."""
        named = self.addresses if endpoints is None else endpoints
        return {"x-prefiller-host-port": ",".join(named)} if named else {}

    async def post(
        self,
        endpoints: Sequence[str] | None = None,
        *,
        path: str = "/v1/completions",
        **fields: Any,
    ) -> tuple[int, Any]:
        """Ask through the sidecar, split at these endpoints, by default at all."""
        body = {"model": "sim", "prompt": PROMPT, "max_tokens": 8, **fields}
        async with self.http.post(self.url(path), json=body, headers=self.head(endpoints)) as got:
            return got.status, json.loads(await got.read())

    async def text(self, *, decoded: bool = False, stream: bool = False, **fields: Any) -> str:
        """The text of an answer through the sidecar, split unless it is only ``decoded``."""
        body = {"model": "sim", "prompt": PROMPT, "max_tokens": 8, "stream": stream, **fields}
        head = {} if decoded else self.head()
        async with self.http.post(self.url(), json=body, headers=head) as got:
            raw = await got.read()
        assert got.status == 200, raw
        if not stream:
            return text_of(json.loads(raw))
        events = [line[6:] for line in raw.split(b"\n") if line.startswith(b"data: {")]
        return "".join(text_of(json.loads(event)) for event in events)

    async def decode_call(self, path: str) -> None:
        """Have the decode engine ``sleep``, so that it hangs, or ``wake_up``."""
        async with self.http.post(f"http://127.0.0.1:{self.decode_port}/{path}") as got:
            assert got.status == 200

    async def local(self, prompt: str = PROMPT, tokens: int = 8) -> str:
        """The text that the decode engine answers alone."""
        url = f"http://127.0.0.1:{self.decode_port}/v1/completions"
        body = {"model": "sim", "prompt": prompt, "max_tokens": tokens}
        async with self.http.post(url, json=body) as got:
            text: str = json.loads(await got.read())["choices"][0]["text"]
        self.decode.engine.cache.clear()
        return text

    def count(self, name: str, **labels: str) -> float:
        """A metric of the sidecar; 0 if it was never counted."""
        return value(self.sidecar.metrics.registry, name, labels)

    @property
    def external(self) -> int:
        """Prompt tokens that the decode engine fetched."""
        return self.decode.engine.totals.external_tokens

    async def at_rest(self) -> bool:
        """Whether no one holds or does anything."""
        engines = [*self.prefills, self.decode]
        used = sum(each.engine.cache.used + each.engine.waiting for each in engines)
        kept = ("requests_in_flight", "prefills_in_flight", "buffered_bytes")
        return not used and not any(self.count(f"epp_sidecar_{name}") for name in kept)


def value(registry: CollectorRegistry, name: str, labels: Mapping[str, str]) -> float:
    return registry.get_sample_value(name, dict(labels)) or 0.0


def text_of(answer: Any) -> str:
    text: str = answer["choices"][0]["text"]
    return text


def changed(options: EngineOptions, **fields: Any) -> EngineOptions:
    return msgspec.structs.replace(options, **fields)


@contextlib.asynccontextmanager
async def beside(engine_port: int, **options: Any) -> AsyncIterator[Sidecar]:
    """Run a sidecar of an engine, in plain HTTP, on a free port."""
    defaults = {"host": "127.0.0.1", "port": 0, "secure_proxy": False, "drain_timeout": 0.0}
    sidecar = Sidecar(SidecarOptions(**{**defaults, "model_server_port": engine_port, **options}))
    await sidecar.start()
    try:
        yield sidecar
    finally:
        await sidecar.stop()


def with_sidecar(
    use: Callable[[Bench], Awaitable[None]],
    *,
    prefills: Sequence[EngineOptions] = (PREFILL,),
    decode: EngineOptions = DECODE,
    **options: Any,
) -> None:
    """Run ``use`` on an event loop of its own; no task outlives it."""

    async def main() -> None:
        async with (
            engine.served(*prefills, decode) as servers,
            beside(servers[-1][1], **options) as sidecar,
            aiohttp.ClientSession() as http,
        ):
            await use(Bench(sidecar, servers, http))
        await asyncio.sleep(0)
        left = {task.get_name() for task in asyncio.all_tasks()} - {
            task.get_name() for task in [asyncio.current_task()] if task is not None
        }
        assert not left, left

    asyncio.run(main())


class Recorder:
    """A server that writes down what it is sent, and answers as it is told."""

    def __init__(self, answer: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> None:
        self.seen: list[tuple[str, dict[str, str], Any]] = []  #: path, headers, body
        self.port = 0
        self._answer = answer

    async def handle(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.seen.append((request.path, headers, json.loads(raw) if raw else None))
        return await self._answer(request)

    def bodies(self, path: str) -> list[Any]:
        return [body for seen, _, body in self.seen if seen == path]


async def good(request: web.Request) -> web.StreamResponse:
    """An answer for every path."""
    return web.json_response({"choices": [{"text": "ok"}]})


@contextlib.asynccontextmanager
async def recording(
    answer: Callable[[web.Request], Awaitable[web.StreamResponse]] = good,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[Recorder]:
    recorder = Recorder(answer)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", recorder.handle)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
        recorder.port = runner.addresses[0][1]
        yield recorder
    finally:
        await runner.cleanup()
