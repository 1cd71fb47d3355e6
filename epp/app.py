"""Composition root: options and configuration -> a running picker; start, reload, drain, stop.

Every task is started here or in a collector's own task group, and is named. A reload builds a
new pipeline beside the old one and swaps it in by one assignment; a bad file changes nothing.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import random
import signal
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import msgspec
import uvloop
from grpc import aio

from epp import output
from epp.admin_port import admin_of
from epp.answering import Answering
from epp.build import Parts, configure, retire
from epp.catalog import Catalog
from epp.clock import SystemClock
from epp.collect.scrape import Scraper
from epp.config.watch import watch_file
from epp.counts import ScrapeCounts, StreamCounts, watch_pipeline
from epp.errors import ConfigError
from epp.exchange import Exchange
from epp.extproc import tls
from epp.extproc.health import HealthService
from epp.extproc.listen import PickerServer, build_health_server, build_server
from epp.extproc.measured import measure
from epp.extproc.server import ExtProcService, Settings
from epp.feedback.access_log import AccessLogs
from epp.feedback.unseen import Unseen
from epp.ledger import Ledger
from epp.options import ServeOptions
from epp.origin import Told, collecting_of, leadership_of, origin_of, scraping_of
from epp.page.board import Board
from epp.pipeline import Pipeline, types_of
from epp.placement import stay_together
from epp.plugin import Observer
from epp.pool import Pool
from epp.router import Router
from epp.rules import RuleBook
from epp.telemetry import log as logs
from epp.telemetry.admin import AdminPages, AdminServer
from epp.telemetry.metrics import Metrics
from epp.telemetry.trace_settings import tracing_of
from epp.watching import Watching

SWEEP_SECONDS = 0.25  #: between looks at exchanges that nobody told the end of
NOTICE_SECONDS = 1.0  #: not ready, but still serving, before the port closes
HANDOVER_SECONDS = 5.0  #: the same for a leader: others try every 2.4 s, then are found to be ready
GC_THRESHOLDS = (20_000, 20, 20)
"""Allocations between collections: few objects of ours form cycles, and a full collection with
a large index stops the loop for milliseconds."""

log = logging.getLogger(__name__)


def run(options: ServeOptions) -> int:
    """Run the picker until SIGTERM or SIGINT, twice for at once; return the exit status.

    It is 2 if the picker cannot start as it is told to.
    """
    logs.set_up(options.verbosity, options.log_format)
    for warning in options.warnings:
        log.warning(warning)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(App(options).run())
    except ConfigError as error:
        output.complain(f"epp: {error}")
        return 2


class App:
    """One picker: what it is made of, and its life."""

    def __init__(self, options: ServeOptions) -> None:
        self.options = options
        self.clock = SystemClock()
        self.pool = Pool(options.pool_name or "default")
        self.ledger = Ledger()
        self.leader = leadership_of(options)
        self.metrics = Metrics()
        self.book = RuleBook(tell=self.metrics.rewritten)
        self.board = Board(self.pool, self.ledger, self.metrics.store, self.clock)
        self.unseen = Unseen(self.pool, self.clock)
        self.tracing = tracing_of(options.tracing, os.environ)
        if self.tracing is not None:
            logs.set_up(options.verbosity, options.log_format, trace_id=self.tracing.trace_id)
        self._seldom = logs.Seldom(self.clock, log.warning)
        self._resting: set[str] = set()  #: names of plugins left out for their faults
        self._last_error = ""  #: why the last reload was refused; "" if it was not
        self.watching = Watching(options, self.metrics, ledger=self.ledger, clock=self.clock)
        self.parts = Parts(
            clock=self.clock,
            random=random.Random(),
            ledger=self.ledger,
            pool=self.pool,
            book=self.book,
            catalog=Catalog(options.plugin_paths),
            allow_experimental=options.allow_experimental_plugins,
            extra_observers=(*self.watching.observers, self.board.traffic),
            witness=self.watching.receipts,
            emit_scores=options.emit_endpoint_scores,
            on_fault=self._plugin_fault,
            timings=self.metrics,
            tracer=self.tracing,
        )
        text = self._text()
        self._started_with = text  #: the configuration's text, for the watch to compare with
        self.loaded, pipeline = configure(text, self.parts, source=options.config_file)
        self._warn(self.loaded.warnings, pipeline)
        self.router = Router(
            self.pool,
            pipeline,
            self.ledger,
            clock=self.clock,
            on_observer_error=self._observer_error,
            heed_subset=not options.disable_endpoint_subset_filter,
        )
        retire(None, pipeline, self.pool)
        for forget in (self.ledger.forget, self.metrics.forget, self.board.traffic.forget):
            self.pool.on_forget(forget)
        self.metrics.plugin_types = types_of(pipeline)

    async def run(self) -> int:
        """Serve until told to stop; return the exit status.

        Raises:
            ConfigError: the picker cannot start as it is told to.
        """
        stop, hurry = asyncio.Event(), asyncio.Event()

        def told() -> None:
            (hurry if stop.is_set() else stop).set()

        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, told)
        loop.add_signal_handler(signal.SIGHUP, lambda: self.reload("SIGHUP"))
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(work, name=name) for name, work in self._collectors().items()
                ]
                await self._serve(stop, hurry)
                for task in tasks:
                    task.cancel()
        except ExceptionGroup as errors:  # Python 3.11.2 wraps what `except*` raises once more
            if not isinstance(errors.exceptions[0], ConfigError):
                raise
            raise errors.exceptions[0] from None
        finally:
            if self.tracing is not None:
                self.tracing.close()
        log.info("stopped")
        return 0

    def reload(self, why: str) -> None:
        """Read the configuration again; what is wrong with it changes nothing."""
        before = self.router.pipeline
        try:
            loaded, pipeline = configure(
                self._text(), self.parts, previous=before, source=self.options.config_file
            )
        except ConfigError as error:
            self._last_error = str(error)
            self.metrics.reloaded(ok=False)
            log.error("the configuration stays as it was (%s): %s", why, error)  # noqa: TRY400
            return
        self._warn(loaded.warnings, pipeline)
        if collecting_of(loaded, pipeline) != collecting_of(self.loaded, before):
            log.warning("the data layer is configured at start only: restart the picker for it")
        self.router.reload(pipeline)
        retire(before, pipeline, self.pool)
        self._enable(before, pipeline)
        self.loaded, self._last_error = loaded, ""
        self.metrics.plugin_types = types_of(pipeline)
        self.metrics.reloaded(ok=True)
        log.info("the configuration was read again (%s)", why)

    # --- serving -------------------------------------------------------------------------

    async def _serve(self, stop: asyncio.Event, hurry: asyncio.Event) -> None:
        options = self.options
        service = self._service()
        health = HealthService(self._ready, elected=self.leader is not None)
        credentials = None
        if options.secure_serving:
            credentials = tls.credentials(Path(options.cert_path) if options.cert_path else None)
        server = build_server(
            service,
            health=health if options.health_checking else None,
            handlers=(AccessLogs(self.unseen).handler(),),
            credentials=credentials,
            host=options.host,
            port=options.grpc_port,
            max_message_bytes=(options.grpc_max_recv_msg_size, options.grpc_max_send_msg_size),
        )
        health_server, health_port = build_health_server(
            health, host=options.host, port=options.grpc_health_port
        )
        admin = admin_of(options, self.metrics, pages=self._pages(service, stop), clock=self.clock)
        try:
            await self._start(server.start(), health_server, admin)
            ports = {"grpc": server.port, "health": health_port, "admin": admin.port}
            output.tell(msgspec.json.encode(ports).decode())  # who starts us reads it
            log.info("serving", extra={"fields": {**ports, "tls": options.secure_serving}})
            gc.collect()
            gc.freeze()
            gc.set_threshold(*GC_THRESHOLDS)
            await stop.wait()
            log.info("draining", extra={"fields": {"streams": service.active}})
            health.drain()
            leads = self.leader is not None and self.leader.ready
            async with asyncio.TaskGroup() as group:
                if self.leader is not None:
                    group.create_task(self.leader.release(), name="release")
                notice = HANDOVER_SECONDS if leads else NOTICE_SECONDS
                await self._drain(server, hurry, notice=notice)
        finally:
            await server.stop()
            await health_server.stop(None)
            await admin.stop()

    def _ready(self) -> bool:
        return self.pool.synced and (self.leader is None or self.leader.ready)

    async def _drain(self, server: PickerServer, hurry: asyncio.Event, *, notice: float) -> None:
        """Drain, until done or told a second time to stop."""
        drain = asyncio.create_task(
            server.drain(self.options.drain_timeout, notice=notice), name="drain"
        )
        told = asyncio.create_task(hurry.wait(), name="hurry")
        await asyncio.wait((drain, told), return_when=asyncio.FIRST_COMPLETED)
        told.cancel()
        if not drain.done():
            log.warning("told again to stop: open streams are cut off")
            drain.cancel()
            await server.stop()
        await asyncio.wait((drain, told))

    async def _start(
        self, serving: Coroutine[Any, Any, None], health: aio.Server, admin: AdminServer
    ) -> None:
        await serving
        await health.start()
        try:
            await admin.start()
        except OSError as error:
            raise ConfigError(f"cannot listen on port {admin.port}: {error}") from error

    def _service(self) -> ExtProcService:
        answering = Answering(lambda: self.router.pipeline, self.watching.answer_headers)
        service = ExtProcService(
            self.router,
            settings=msgspec.convert(self.options, Settings, from_attributes=True),
            unseen=self.unseen,
            counters=StreamCounts(self.metrics),
            answer_headers=answering.headers,
            on_answer_piece=Exchange.response_data,
        )
        service.answer_metadata = answering.metadata
        measure(service, self.metrics, self.clock, lives=self.options.enable_grpc_stream_metrics)
        if self.tracing is not None:
            self.tracing.attach(service)
        self.metrics.watch_pool(self.pool.name, self.pool.snapshot, self.ledger)
        watch_pipeline(self.metrics, lambda: self.router.pipeline, self.pool)
        self.metrics.live("epp_buffered_bytes", lambda: {(): float(service.budget.used)})
        self.metrics.live("epp_open_exchanges", lambda: {(): float(len(self.unseen))})
        return service

    # --- collecting ----------------------------------------------------------------------

    def _collectors(self) -> dict[str, Coroutine[Any, Any, None]]:
        plugins = self.router.pipeline.plugins.values()
        return {
            "endpoints": self._endpoints(plugins),
            "scrape": self._scraper(plugins).run(self.pool),
            "unseen": self._sweep(),
            "board": self.board.run(),
            **({"placement": stay_together()} if self.options.one_cpu else {}),
            **({} if self.leader is None else {"leader": self.leader.run()}),
            **self._watches(),
        }

    def _endpoints(self, plugins: Any) -> Coroutine[Any, Any, None]:
        told = Told(self._seldom, self.book, self.leader)
        origin = origin_of(self.options, plugins, told)
        origin.load(self.pool)
        return origin.run(self.pool)

    def _scraper(self, plugins: Any) -> Scraper:
        settings, engines = scraping_of(self.options, plugins)
        return Scraper(
            settings,
            engines,
            clock=self.clock,
            random=random.Random(),
            ledger=self.ledger,
            reports=ScrapeCounts(self.metrics, self._seldom),
        )

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            before = self.unseen.reaped
            self.unseen.sweep()
            for _ in range(self.unseen.reaped - before):
                self.metrics.reaped()

    def _watches(self) -> dict[str, Coroutine[Any, Any, None]]:
        path = self.options.config_file
        if not path:
            return {}

        async def changed() -> None:
            self.reload(f"{path} changed")

        return {"config": watch_file(path, changed, used=(self._started_with or "").encode())}

    # --- telling -------------------------------------------------------------------------

    def _text(self) -> str | None:
        options = self.options
        if options.config_file and options.config_text:
            raise ConfigError("--config-file and --config-text exclude each other")
        if not options.config_file:
            return options.config_text or None
        try:
            return Path(options.config_file).read_bytes().decode()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read the configuration: {error}") from error

    def _warn(self, warnings: tuple[str, ...], pipeline: Pipeline) -> None:
        for warning in (*warnings, *pipeline.warnings):
            log.warning(warning)

    def _pages(self, service: ExtProcService, stop: asyncio.Event) -> AdminPages:
        def config() -> Any:
            return {
                "source": self.loaded.source or "built in",
                "current": not self._last_error,
                "lastError": self._last_error,
                "warnings": self.loaded.warnings,
                "config": self.loaded.config,
            }

        def state() -> Any:
            return {
                "streams": service.active,
                "open_exchanges": len(self.unseen),
                "reaped": self.unseen.reaped,
                "unmatched_log_entries": self.unseen.unmatched,
                "access_logs": self.unseen.logs_connected,
                "buffered_bytes": service.budget.used,
                "draining": stop.is_set(),
            }

        return AdminPages(
            ready=lambda: self._ready() and not stop.is_set(),
            config=config,
            endpoints=self.pool.snapshot,
            plugins=lambda: self.router.pipeline.plugins,
            in_flight=self.board.in_flight,
            state=state,
            live=self.board.answer,
            decisions=self.watching.receipts,
        )

    def _observer_error(self, observer: Observer, error: Exception) -> None:
        name = type(observer).__name__
        self.metrics.plugin_failed(name, "raised")
        self._seldom(f"{name} raised {type(error).__name__}", kind=name)

    def _enable(self, before: Pipeline, pipeline: Pipeline) -> None:
        """Whatever rested in ``before`` and is not in ``pipeline`` does not rest any more."""
        for name, made in before.plugins.items():
            if name in self._resting and pipeline.plugins.get(name) is not made:
                self._plugin_fault(name, "enabled")

    def _plugin_fault(self, name: str, kind: str) -> None:
        if kind in ("disabled", "enabled"):
            rests = kind == "disabled"
            (self._resting.add if rests else self._resting.discard)(name)
            type_ = self.metrics.plugin_types.get(name, name)
            self.metrics.plugin_disabled(name, type_, disabled=rests)
        else:
            self.metrics.plugin_failed(name, kind)
        self._seldom(f"plugin {name!r}: {kind}", kind=f"{name} {kind}")
