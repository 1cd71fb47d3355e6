"""Composition root: options and configuration -> a running picker; start, reload, drain, stop.

Every task is started here or in a collector's own task group, and is named. A reload builds a
new pipeline beside the old one and swaps it in by one assignment; a bad file changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import ssl
from collections.abc import Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from epp.aside.reader import AsideReader
from epp.catalog import Catalog
from epp.clock import SystemClock
from epp.config.presets import PRESETS
from epp.config.watch import watch_file
from epp.errors import ConfigError
from epp.exchange import Exchange
from epp.extproc.measured import measure
from epp.extproc.port.health import HealthService
from epp.extproc.port.listen import OwnPort, build_health_server, build_server
from epp.extproc.server import ExtProcService, Settings
from epp.feedback.access_log import AccessLogs
from epp.feedback.unseen import Unseen
from epp.lanes.lane import Shared, Told
from epp.lanes.many import Many
from epp.lanes.one import One
from epp.lanes.ports import Ports
from epp.process import ciphers, descriptors, garbage
from epp.process.placement import stay_together
from epp.process.server_tls import server_context
from epp.rpc.server import RpcServer
from epp.serve.admin_port import admin_of
from epp.serve.counts import StreamCounts
from epp.serve.options import ServeOptions
from epp.serve.origin import leadership_of
from epp.serve.peers import sharing_of
from epp.serve.tracing import tracing_of
from epp.telemetry import log as logs
from epp.telemetry.admin import AdminPages, AdminServer
from epp.telemetry.metrics import Metrics
from epp.terminal import output

SWEEP_SECONDS = 0.25  #: between looks at exchanges that nobody told the end of
NOTICE_SECONDS = 1.0  #: not ready, but still serving, before the port closes
HANDOVER_SECONDS = 5.0  #: the same for a leader: others try every 2.4 s, then are found to be ready

log = logging.getLogger(__name__)


def run(options: ServeOptions) -> int:
    """Run the picker until SIGTERM or SIGINT, twice for at once; return the exit status.

    It is 2 if the picker cannot start as it is told to.
    """
    logs.set_up(options.verbosity, options.log_format)
    for warning in options.warnings:
        log.warning(warning)
    descriptors.raise_limit()
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
        self.leader = leadership_of(options)
        self.metrics = Metrics()
        self.tracing = tracing_of(options.tracing, os.environ)
        if self.tracing is not None:
            logs.set_up(options.verbosity, options.log_format, trace_id=self.tracing.trace_id)
        self.reader = AsideReader(self.clock)
        self.peers = sharing_of(options, self.clock)
        self._started_with = self._read()[0]  #: for the watch to compare with
        shared = Shared(
            options=options,
            clock=self.clock,
            catalog=Catalog(options.plugin_paths),
            seldom=logs.Seldom(self.clock, log.warning),
            tracer=self.tracing,
            reader=self.reader,
            peers=self.peers,
        )
        pools = Many if options.many_pools else One
        self.pools: One | Many = pools(shared, self.metrics, self._read)
        self.unseen = self._unseen()

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
            await self.reader.close()
            if self.tracing is not None:
                self.tracing.close()
        log.info("stopped")
        return 0

    def reload(self, why: str) -> None:
        """Read the configuration again; what is wrong with it changes nothing."""
        self.pools.reload(why)

    # --- serving -------------------------------------------------------------------------

    async def _serve(self, stop: asyncio.Event, hurry: asyncio.Event) -> None:
        options = self.options
        service = self._service()
        health = HealthService(self._ready, elected=self.leader is not None)
        secure = None
        if options.secure_serving:

            def tune(context: ssl.SSLContext) -> None:
                context.set_alpn_protocols(["h2"])
                ciphers.apply(context, options.tls_min_version, options.tls_cipher_suites)

            files = Path(options.cert_path) if options.cert_path else None
            secure = server_context(files, tune)
        build = partial(
            build_server,
            service,
            health=health if options.health_checking else None,
            methods=(AccessLogs(self.unseen).methods,),
            tls=secure,
            host=options.host,
            max_message_bytes=(options.grpc_max_recv_msg_size, options.grpc_max_send_msg_size),
        )
        server = Ports(
            build(port=options.grpc_port),
            lambda: self.pools.ports,
            lambda port: build(port=OwnPort(port)),
            options.drain_timeout,
        )
        health_server, health_port = build_health_server(
            health, host=options.host, port=options.grpc_health_port
        )
        admin = admin_of(options, self.metrics, pages=self._pages(service, stop), clock=self.clock)
        admin.pools = self.pools.pages_by_pool
        try:
            await self._start(server.start(), health_server, admin)
            ports = {"grpc": server.port, "health": health_port, "admin": admin.port}
            if self.peers is not None:
                await self.peers.start()
                ports["peers"] = self.peers.port
            output.tell(msgspec.json.encode(ports).decode())  # who starts us reads it
            log.info("serving", extra={"fields": {**ports, "tls": options.secure_serving}})
            garbage.settle()
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
            if self.peers is not None:
                await self.peers.stop()
            await health_server.stop(None)
            await admin.stop()

    def _ready(self) -> bool:
        return self.pools.ready and (self.leader is None or self.leader.ready)

    async def _drain(self, server: Ports, hurry: asyncio.Event, *, notice: float) -> None:
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
        self, serving: Coroutine[Any, Any, None], health: RpcServer, admin: AdminServer
    ) -> None:
        await serving
        await health.start()
        try:
            await admin.start()
        except OSError as error:
            raise ConfigError(f"cannot listen on port {admin.port}: {error}") from error

    def _service(self) -> ExtProcService:
        service = ExtProcService(
            self.pools.router,
            settings=msgspec.convert(self.options, Settings, from_attributes=True),
            unseen=self.unseen,
            counters=StreamCounts(self.metrics),
            on_answer_piece=Exchange.response_data,
        )
        self.pools.attach(service)
        measure(service, self.metrics, self.clock, lives=self.options.enable_grpc_stream_metrics)
        if self.tracing is not None:
            self.tracing.attach(service)
        self.metrics.live("epp_buffered_bytes", lambda: {(): float(service.budget.used)})
        self.metrics.live("epp_open_exchanges", lambda: {(): float(len(self.unseen))})
        if (leader := self.leader) is not None:
            self.metrics.live("epp_leader", lambda: {(): float(leader.leads)})
        return service

    def _unseen(self) -> Unseen:
        peers = self.peers
        if peers is None:
            return Unseen(self.pools, self.clock)
        unseen = Unseen(self.pools, self.clock, run=peers.instance, forward=peers.entries.tell)
        peers.entries.attach(unseen)
        return unseen

    # --- collecting ----------------------------------------------------------------------

    def _collectors(self) -> dict[str, Coroutine[Any, Any, None]]:
        return {
            **self.pools.work(self.leader),
            "unseen": self._sweep(),
            **({"placement": stay_together()} if self.options.one_cpu else {}),
            **({} if self.leader is None else {"leader": self.leader.run()}),
            **({} if self.peers is None else {"places": self.peers.run()}),
            **self._watches(),
        }

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

    def _read(self) -> Told:
        options = self.options
        named = (options.config_file, options.config_text, options.preset)
        if sum(map(bool, named)) > 1:
            raise ConfigError("--config-file, --config-text and --preset exclude each other")
        if options.preset:
            return PRESETS[options.preset], f"preset {options.preset}"
        if not options.config_file:
            return options.config_text or None, ""
        try:
            return Path(options.config_file).read_bytes().decode(), options.config_file
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read the configuration: {error}") from error

    def _pages(self, service: ExtProcService, stop: asyncio.Event) -> AdminPages:
        def state() -> Any:
            return {
                "streams": service.active,
                "open_exchanges": len(self.unseen),
                "reaped": self.unseen.reaped,
                "unmatched_log_entries": self.unseen.unmatched,
                "access_logs": self.unseen.logs_here,
                "buffered_bytes": service.budget.used,
                "draining": stop.is_set(),
                **({} if self.peers is None else {"peers": self.peers.page()}),
            }

        return self.pools.pages(lambda: self._ready() and not stop.is_set(), state)
