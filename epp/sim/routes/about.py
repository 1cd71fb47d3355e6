"""The part of a model server's API that is about the server: metrics, models, cache, sleep."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web

from epp import __version__
from epp.sim.engine import Engine
from epp.sim.options import EngineOptions
from epp.sim.pacer import Pacer
from epp.sim.routes.tokens import answered

if TYPE_CHECKING:
    from epp.sim.publisher import Publisher


class About(msgspec.Struct, frozen=True):
    """What these paths tell of a running server."""

    options: EngineOptions
    pacer: Pacer
    max_model_len: int
    render: Callable[[], str]  #: the text of ``/metrics``
    publisher: Publisher | None  #: of KV events
    dead: Callable[[], bool]

    def add(self, app: web.Application) -> None:
        """Add the paths."""
        for path in ("/health", "/ping"):
            app.router.add_get(path, self._get_health)
        app.router.add_post("/ping", self._get_health)
        app.router.add_get("/metrics", self._get_metrics)
        app.router.add_get("/v1/models", self._get_models)
        app.router.add_get("/version", self._get_version)
        app.router.add_get("/load", self._get_load)
        app.router.add_get("/kv_event_sources", self._get_kv_event_sources)
        app.router.add_post("/reset_prefix_cache", self._reset_prefix_cache)
        app.router.add_post("/sleep", self._sleep)
        app.router.add_post("/wake_up", self._wake_up)
        app.router.add_get("/is_sleeping", self._is_sleeping)

    async def _get_health(self, request: web.Request) -> web.Response:
        return web.Response(status=503 if self.dead() else 200)

    async def _get_metrics(self, request: web.Request) -> web.Response:
        if self.options.hang_metrics:
            await asyncio.Event().wait()
        content_type = "text/plain; version=0.0.4; charset=utf-8"
        return web.Response(body=self.render().encode(), headers={"content-type": content_type})

    async def _get_models(self, request: web.Request) -> web.Response:
        names = (*self.options.models, *self.options.adapters)
        return answered({"object": "list", "data": [self._model(name) for name in names]})

    def _model(self, name: str) -> dict[str, Any]:
        adapter = name in self.options.adapters
        return {
            "id": name,
            "object": "model",
            "created": int(time.time()),
            "owned_by": "vllm",
            "root": name if adapter else self.options.models[0],
            "parent": self.options.models[0] if adapter else None,
            "max_model_len": None if adapter else self.max_model_len,
            "permission": [],
        }

    async def _get_version(self, request: web.Request) -> web.Response:
        return answered({"version": f"epp-engine-{__version__}"})

    async def _get_load(self, request: web.Request) -> web.Response:
        engine = self.pacer.engine
        return answered({"server_load": engine.running + engine.waiting})

    async def _reset_prefix_cache(self, request: web.Request) -> web.Response:
        self.pacer.engine.cache.clear()
        if self.publisher is not None:
            self.publisher.cleared()
        return web.Response()

    async def _get_kv_event_sources(self, request: web.Request) -> web.Response:
        return answered({} if self.publisher is None else self.publisher.sources())

    async def _sleep(self, request: web.Request) -> web.Response:
        """As in vLLM, an engine asleep is healthy, takes requests, and never answers them."""
        self.pacer.sleep()
        return answered({"status": "sleeping", "level": 1})

    async def _wake_up(self, request: web.Request) -> web.Response:
        self.pacer.wake()
        return web.Response()

    async def _is_sleeping(self, request: web.Request) -> web.Response:
        return answered({"is_sleeping": self.pacer.asleep})


def add_load(request: web.Request, response: web.Response, engine: Engine) -> None:
    """Report load in a header where the client asks for it (ORCA)."""
    wanted = request.headers.get("endpoint-load-metrics-format", "").upper()
    waiting, usage = float(engine.waiting), engine.kv_usage
    if wanted == "TEXT":
        text = (
            f"TEXT named_metrics.num_requests_waiting={waiting}, "
            f"named_metrics.kv_cache_usage_perc={usage}"
        )
        response.headers["endpoint-load-metrics"] = text
    elif wanted == "JSON":
        named = {"num_requests_waiting": waiting, "kv_cache_usage_perc": usage}
        text = msgspec.json.encode({"named_metrics": named}).decode()
        response.headers["endpoint-load-metrics"] = f"JSON {text}"
