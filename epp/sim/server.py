"""A simulated model server on real HTTP: vLLM's API, latencies, cache and metrics, no model.

Good enough to test any router with. What differs from a vLLM server: all APIs are served at once
(embeddings too), an answer's text is made up from the prompt and the seeds, an answer
without ``max_tokens`` ends by itself after some tens of tokens, sampling parameters are ignored, and each answer
carries ``x-engine-name``, which is ours.

**Source:** answers, metrics, errors and shutdown of vLLM 0.32 servers, as observed.
"""

from __future__ import annotations

import asyncio
import random
import signal
import sys
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec
import uvloop
from aiohttp import web

from epp import __version__
from epp.model import join_host_port
from epp.sim import token_routes
from epp.sim.asked import Asked, Refused, read, read_json
from epp.sim.calls import Call, Room
from epp.sim.engine import Engine
from epp.sim.exposition import Metrics
from epp.sim.model import Finished, StepResult
from epp.sim.openai import Answer
from epp.sim.options import EngineOptions
from epp.sim.other_apis import SHAPES
from epp.sim.pacer import Pacer
from epp.sim.token_routes import answered

if TYPE_CHECKING:
    from epp.sim.publisher import Publisher

NAME_HEADER = "x-engine-name"  #: ours: which engine answered
GRACE = 2.0  #: real seconds that aborted answers may take to be written
STREAM_HEADERS = {"content-type": "text/event-stream; charset=utf-8"}
PATHS = {
    "/v1/completions": "completions",
    "/v1/chat/completions": "chat",
    "/v1/embeddings": "embeddings",
    "/v1/responses": "responses",
    "/v1/messages": "messages",
    "/inference/v1/generate": "generate",
}


class EngineServer:
    """One simulated model server. Use `start` and `stop` on the same running event loop."""

    def __init__(self, options: EngineOptions) -> None:
        """Build the engine; nothing is opened yet.

        Raises:
            ConfigError: an option is out of range.
        """
        self.options = options
        config = options.config()
        self.engine = Engine(config, options.seed)
        capacity = (config.kv_blocks - 1) * config.block_tokens
        self._room = Room(
            max_model_len=min(options.max_model_len, capacity),
            block_tokens=config.block_tokens,
            seed=options.seed,
            tells_tokens=options.publishes,
        )
        self._publisher: Publisher | None = None
        self._metrics = Metrics(options, self.engine, created=time.time())
        self._random = random.Random(options.seed)
        self._models = (*options.models, *options.adapters)
        self._slots: dict[str, tuple[Call, int]] = {}  #: sequence id -> its call, its choice
        self._serial = 0
        self._draining = False
        self._idle = asyncio.Event()
        self._idle.set()

    # --- life ----------------------------------------------------------------------------

    async def start(self) -> int:
        """Listen; return the port.

        Raises:
            OSError: the address cannot be bound.
        """
        if self.options.publishes:
            from epp.sim.publisher import Publisher  # noqa: PLC0415 - pyzmq is an extra

            self._publisher = Publisher(self.options, self.engine)
        self._pacer = Pacer(self.engine, speed=self.options.speed, on_step=self._on_step)
        self._runner = web.AppRunner(
            self._app(), handler_cancellation=True, access_log=None, shutdown_timeout=GRACE
        )
        await self._runner.setup()
        self._site = web.TCPSite(self._runner, self.options.host, self.options.port, backlog=1024)
        await self._site.start()
        return int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        """Stop as vLLM does on SIGTERM.

        With ``shutdown_timeout`` 0, the port closes at once and what is under way is answered with
        ``finish_reason: abort``. Else new requests get 500, health stays 200, and what is
        under way may end within that time.
        """
        self._draining = True
        if self.options.shutdown_timeout > 0:
            try:
                async with asyncio.timeout(self.options.shutdown_timeout):
                    await self._idle.wait()
            except TimeoutError:
                pass  # what is left is aborted below
        await self._site.stop()
        self._abort_all()
        await self._runner.cleanup()
        self._pacer.stop()
        if self._publisher is not None:
            self._publisher.close()

    def _abort_all(self) -> None:
        for name in self.engine.ids():
            finished = self._pacer.abort(name)
            call, index = self._slots[name]
            if finished is not None:
                call.ended(index, finished)

    def _app(self) -> web.Application:
        app = web.Application(
            client_max_size=self.options.max_body_bytes, middlewares=[self._edges]
        )
        for path, api in PATHS.items():
            app.router.add_post(path, self._handler(api))
        app.router.add_get("/metrics", self._get_metrics)
        app.router.add_get("/v1/models", self._get_models)
        app.router.add_get("/version", self._get_version)
        app.router.add_get("/load", self._get_load)
        for path in ("/health", "/ping"):
            app.router.add_get(path, self._get_health)
        app.router.add_post("/ping", self._get_health)
        token_routes.add(app, self._room)
        app.router.add_get("/kv_event_sources", self._get_kv_event_sources)
        app.router.add_post("/reset_prefix_cache", self._reset_prefix_cache)
        app.router.add_post("/sleep", self._sleep)
        app.router.add_post("/wake_up", self._wake_up)
        app.router.add_get("/is_sleeping", self._is_sleeping)
        return app

    @web.middleware
    async def _edges(
        self,
        request: web.Request,
        handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
    ) -> web.StreamResponse:
        """Answer refusals, and paths and methods that are not served, as vLLM does."""
        try:
            response = await handler(request)
        except Refused as refused:
            response = answered(refused.body(), refused.status)
        except web.HTTPException as error:
            response = answered({"detail": error.reason}, error.status)
            if "Allow" in error.headers:
                response.headers["Allow"] = error.headers["Allow"]
        if not response.prepared:
            response.headers[NAME_HEADER] = self.options.name
        return response

    # --- inference -------------------------------------------------------------------------

    def _handler(self, api: str) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def handle(request: web.Request) -> web.StreamResponse:
            raw = await request.read()
            if self._draining:
                message = "cannot schedule new futures after shutdown"
                raise Refused(500, message, kind="InternalServerError")
            asked = read(api, read_json(request.headers.get("content-type", ""), raw))
            return await self._infer(request, self._accept(asked))

        return handle

    def _accept(self, asked: Asked) -> Asked:
        """Return the request with its model named, or raise `Refused`."""
        if not asked.model:
            asked = msgspec.structs.replace(asked, model=self.options.models[0])
        if asked.model not in self._models:
            aliases = ", ".join(self._models)
            message = f"The model `{asked.model}` does not exist. Valid aliases: {aliases}."
            raise Refused(404, message, kind="NotFoundError", param="model")
        self._room.check(asked)
        most = self.options.max_num_queued_reqs
        if most is not None and self.engine.waiting >= most:
            self._metrics.rejected += 1
            message = (
                "The engine is currently busy and cannot accept new requests. "
                "Please try again later or on a different instance."
            )
            raise Refused(503, message, kind="Service Unavailable")
        if self.options.fail_rate and self._random.random() < self.options.fail_rate:
            raise Refused(500, "Internal server error", kind="InternalServerError")
        return asked

    async def _infer(self, request: web.Request, asked: Asked) -> web.StreamResponse:
        prefix, shape = SHAPES[asked.api]
        given = request.headers.get("x-request-id") or asked.request_id
        answer = shape(prefix + (given or uuid.uuid4().hex[:16]), int(time.time()), asked)
        call = self._submit(asked)
        try:
            if asked.stream:
                return await self._stream(request, call, answer)
            while call.open:
                await call.events()
            response = answered(answer.whole(call.choices(), call.spent()))
            self._add_load(request, response)
            return response
        finally:
            self._forget(call)

    def _submit(self, asked: Asked) -> Call:
        adapter = asked.model if asked.model in self.options.adapters else ""
        count = len(asked.prompts) * asked.n
        names = [str(self._serial + index) for index in range(count)]
        self._serial += count
        plans = self._room.plan(asked, names, adapter)
        call = Call(
            asked,
            plans,
            details=self.options.prompt_tokens_details,
            block_tokens=self.options.block_size,
        )
        for index, plan in enumerate(plans):
            self._slots[plan.request.id] = (call, index)
            self._pacer.submit(plan.request)
        self._idle.clear()
        return call

    def _forget(self, call: Call) -> None:
        """Drop what is left of a call, ended or given up by its client."""
        for plan in call.plans:
            if self._slots.pop(plan.request.id, None) is not None and call.open:
                self._pacer.abort(plan.request.id)
        if not self._slots:
            self._idle.set()

    async def _stream(self, request: web.Request, call: Call, answer: Answer) -> web.StreamResponse:
        """Write an event stream; pieces that became ready together go out in one write."""
        response = web.StreamResponse(headers={**STREAM_HEADERS, NAME_HEADER: self.options.name})
        response.enable_chunked_encoding()
        await response.prepare(request)
        parts: list[bytes] = []
        opened = closed = False
        while not closed:
            events = await call.events()
            closed = call.open == 0  # and then these are the last events
            for index, made, end in events:
                if not opened:
                    parts.append(answer.opening(msgspec.structs.replace(call.spent(), output=0)))
                    opened = True
                parts.append(self._chunk(call, answer, index, made, end))
            if closed:
                parts.append(answer.closing(call.spent()))
            try:
                await response.write(b"".join(parts))
            except ConnectionError:  # the client has left
                break
            parts.clear()
        return response

    @staticmethod
    def _chunk(call: Call, answer: Answer, index: int, made: int, end: Finished | None) -> bytes:
        if end is not None:
            piece = b"" if end.reason == "abort" else call.plans[index].piece(made - 1)
            return answer.last(index, piece, end.reason, call.spent())
        spent = None
        if call.asked.continuous_usage:
            spent = msgspec.structs.replace(call.spent(), output=made)
        return answer.token(index, call.plans[index].piece(made - 1), spent)

    def _on_step(self, result: StepResult) -> None:
        """Hand a step's tokens and endings to the calls they belong to."""
        slots = self._slots
        ends = {end.id: end for end in result.finished}
        for name in result.emitted:
            call, index = slots[name]
            call.emitted(index, ends.pop(name, None))
        for name, end in ends.items():
            call, index = slots[name]
            call.ended(index, end)
        self._metrics.observe(result)
        if self._publisher is not None:
            self._publisher.step()
        if self.options.adapters:
            self._metrics.note_adapters(time.time())

    def _add_load(self, request: web.Request, response: web.Response) -> None:
        """Report load in a header where the client asks for it (ORCA)."""
        wanted = request.headers.get("endpoint-load-metrics-format", "").upper()
        waiting, usage = float(self.engine.waiting), self.engine.kv_usage
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

    # --- the rest of the API -------------------------------------------------------------

    async def _get_health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _get_metrics(self, request: web.Request) -> web.Response:
        if self.options.hang_metrics:
            await asyncio.Event().wait()
        text = self._metrics.render(time.time(), asleep=self._pacer.asleep)
        content_type = "text/plain; version=0.0.4; charset=utf-8"
        return web.Response(body=text.encode(), headers={"content-type": content_type})

    async def _get_models(self, request: web.Request) -> web.Response:
        return answered({"object": "list", "data": [self._model(name) for name in self._models]})

    def _model(self, name: str) -> dict[str, Any]:
        adapter = name in self.options.adapters
        return {
            "id": name,
            "object": "model",
            "created": int(time.time()),
            "owned_by": "vllm",
            "root": name if adapter else self.options.models[0],
            "parent": self.options.models[0] if adapter else None,
            "max_model_len": None if adapter else self._room.max_model_len,
            "permission": [],
        }

    async def _get_version(self, request: web.Request) -> web.Response:
        return answered({"version": f"epp-engine-{__version__}"})

    async def _get_load(self, request: web.Request) -> web.Response:
        return answered({"server_load": self.engine.running + self.engine.waiting})

    async def _reset_prefix_cache(self, request: web.Request) -> web.Response:
        self.engine.cache.clear()
        if self._publisher is not None:
            self._publisher.cleared()
        return web.Response()

    async def _get_kv_event_sources(self, request: web.Request) -> web.Response:
        return answered({} if self._publisher is None else self._publisher.sources())

    async def _sleep(self, request: web.Request) -> web.Response:
        """As in vLLM, an engine asleep is healthy, takes requests, and never answers them."""
        self._pacer.sleep()
        return answered({"status": "sleeping", "level": 1})

    async def _wake_up(self, request: web.Request) -> web.Response:
        self._pacer.wake()
        return web.Response()

    async def _is_sleeping(self, request: web.Request) -> web.Response:
        return answered({"is_sleeping": self._pacer.asleep})


def run(options: EngineOptions) -> None:
    """Serve until SIGTERM or SIGINT; says where on one line of stdout. Makes its own event loop.

    Raises:
        ConfigError: an option is out of range.
        OSError: the address cannot be bound.
    """
    uvloop.run(_serve(options))


async def _serve(options: EngineOptions) -> None:
    server = EngineServer(options)
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    port = await server.start()
    sys.stdout.write(f"listening on http://{join_host_port(options.host, port)}\n")
    sys.stdout.flush()
    await stopping.wait()
    await server.stop()
