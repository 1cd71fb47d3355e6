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
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import msgspec
from aiohttp import web

from epp.sim.asked import Asked, Refused, read, read_json
from epp.sim.calls import Call, Room
from epp.sim.engine import Engine
from epp.sim.exposition import Metrics
from epp.sim.model import Finished, StepResult
from epp.sim.openai import Answer
from epp.sim.options import EngineOptions
from epp.sim.other_apis import SHAPES
from epp.sim.pacer import Pacer
from epp.sim.routes import tokens
from epp.sim.routes.about import About, add_load
from epp.sim.routes.tokens import answered
from epp.sim.transfer import params
from epp.sim.transfer.fetches import Fetches
from epp.sim.transfer.params import Crashed
from epp.sim.transfer.transfers import Transfers, too_few
from epp.telemetry.http_faults import http_log

if TYPE_CHECKING:
    from epp.sim.publisher import Publisher

NAME_HEADER = "x-engine-name"  #: ours: which engine answered
LOOKS = 0.5  #: engine's seconds between two looks at what is kept for too long
DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."
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
        self.transfers = Transfers(options, self.engine)
        self.died = asyncio.Event()  #: of a request that no engine survives
        self._fetches = Fetches(self.transfers, self._slots.__getitem__)

    # --- life ----------------------------------------------------------------------------

    async def start(self) -> int:
        """Listen; return the port.

        Raises:
            OSError: the address cannot be bound.
        """
        if self.options.publishes:
            from epp.sim.publisher import Publisher  # noqa: PLC0415 - pyzmq is an extra

            self._publisher = Publisher(self.options, self.engine)
        self._pacer = Pacer(
            self.engine, speed=self.options.speed, on_step=self._on_step, on_fetch=self._on_fetch
        )
        await self.transfers.start()
        self._expiry = asyncio.get_running_loop().create_task(self._expire())
        self._runner = web.AppRunner(
            self._app(), handler_cancellation=True, access_log=None, logger=http_log,
            shutdown_timeout=GRACE,
            auto_decompress=False,  # vLLM reads no compressed body either
        )  # fmt: skip
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
        if not self.died.is_set():
            await self._site.stop()
        self._abort_all()
        await self._runner.cleanup()
        self._pacer.stop()
        self._expiry.cancel()
        await self.transfers.stop()
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
        tokens.add(app, self._room)
        self._about().add(app)
        return app

    def _about(self) -> About:
        return About(
            self.options,
            self._pacer,
            max_model_len=self._room.max_model_len,
            render=self._render,
            publisher=self._publisher,
            dead=self.died.is_set,
        )

    def _render(self) -> str:
        asleep = self._pacer.asleep
        return self._metrics.render(time.time(), asleep=asleep, more=self.transfers.lines)

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
        except Crashed:
            await self._die()
            death = dead()
            response = answered(death.body(), death.status)
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
            if self.died.is_set():
                raise dead()
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
        wanted = params.read(asked.kv_transfer_params, self.options.role)
        fault = self.transfers.faults.draw() if wanted.keeps else ""
        await self._suffer(request, fault)
        call = self._submit(asked, wanted)
        try:
            if asked.stream:
                return await self._stream(request, call, answer)
            while call.open:
                await call.events()
            if call.failure is not None:
                raise call.failure
            if wanted.keeps:
                call.transfer = self.transfers.offer(call.plans[0], call.cached, fault=fault)
            whole = answer.whole(call.choices(), call.spent())
            response = answered(whole[: len(whole) // 2] if fault == "malformed" else whole)
            add_load(request, response, self.engine)
            return response
        finally:
            self._forget(call)

    async def _suffer(self, request: web.Request, fault: str) -> None:
        """Let a prefill go wrong before anything is computed."""
        if fault == "error":
            raise Refused(500, "Internal server error", kind="InternalServerError")
        if fault == "hang":
            await asyncio.Event().wait()
        if fault == "disconnect" and request.transport is not None:
            request.transport.abort()

    def _submit(self, asked: Asked, wanted: params.Transfer) -> Call:
        adapter = asked.model if asked.model in self.options.adapters else ""
        first, self._serial = self._serial, self._serial + len(asked.prompts) * asked.n
        names = [str(number) for number in range(first, self._serial)]
        self.transfers.submitted()
        plans = self._room.plan(asked, names, adapter, wanted)
        if wanted.take is not None and too_few(wanted.take, plans, self.options.block_size):
            raise Crashed("fewer blocks than the prompt needs")
        call = Call(
            asked,
            plans,
            details=self.options.prompt_tokens_details,
            block_tokens=self.options.block_size,
            take=wanted.take,
        )
        for index, plan in enumerate(plans):
            self._slots[plan.request.id] = (call, index)
            self._pacer.submit(plan.request)
        self._idle.clear()
        return call

    def _forget(self, call: Call) -> None:
        """Drop what is left of a call, ended or given up by its client."""
        for plan in call.plans:
            name = plan.request.id
            if self._slots.pop(name, None) is None:
                continue
            early = self._pacer.abort(name) is not None
            self._fetches.forget(name, call.take if early else None)
        if not self._slots:
            self._idle.set()

    async def _stream(self, request: web.Request, call: Call, answer: Answer) -> web.StreamResponse:
        """Write an event stream; pieces that became ready together go out in one write."""
        response = web.StreamResponse(headers={**STREAM_HEADERS, NAME_HEADER: self.options.name})
        response.enable_chunked_encoding()
        try:
            await response.prepare(request)
        except ConnectionError:  # the client has left
            return response
        parts: list[bytes] = []
        opened = closed = False
        while not closed:
            events = await call.events()
            closed = call.open == 0  # and then these are the last events
            if call.failure is not None:
                parts.append(answer.broken(call.failure.body(), call.spent()))
                events, opened = [], True
            for index, made, end in events:
                if not opened:
                    parts.append(answer.opening(msgspec.structs.replace(call.spent(), output=0)))
                    opened = True
                parts.append(self._chunk(call, answer, index, made, end))
            if closed and call.failure is None:
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
            self.transfers.emitted(call, index)
            call.emitted(index, ends.pop(name, None))
        for name, end in ends.items():
            call, index = slots[name]
            call.ended(index, end)
        self._metrics.observe(result)
        if self._publisher is not None:
            self._publisher.step()
        if self.options.adapters:
            self._metrics.note_adapters(time.time())

    # --- KV of other engines ---------------------------------------------------------------

    def _on_fetch(self, name: str) -> None:
        recompute = self.options.kv_load_failure_policy == "recompute"
        self._fetches.begin(self._pacer, name, recompute=recompute)

    async def _expire(self) -> None:
        """End leases, as soon as the engine's time says so."""
        while True:
            await asyncio.sleep(LOOKS / self.options.speed)
            self.transfers.expire(self._pacer.now())

    async def _die(self) -> None:
        """Answer all that is under way with the error of a dead engine, and close the port."""
        self.died.set()
        for call in {id(call): call for call, _ in self._slots.values()}.values():
            call.fail(dead())
        await self._site.stop()


def dead() -> Refused:
    """Return what a dead engine says, each time anew: what is raised keeps where it passed."""
    return Refused(500, DEAD, kind="InternalServerError")
