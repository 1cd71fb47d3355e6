"""All that serves one pool: endpoints, bookings, rules, the pipeline, and what listens to it.

A process has one lane, or one for each of its pools. Lanes share nothing that one of them could
spoil: a configuration that is wrong, an engine that hangs or a plugin that fails is one pool's.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from epp.answering import Answering
from epp.build import Parts, configure
from epp.catalog import Catalog
from epp.clock import Clock
from epp.collect.scrape import Scraper
from epp.errors import ConfigError
from epp.exchange import Exchange
from epp.lanes.feeds import follow
from epp.ledger import Ledger
from epp.observe.producers import heeds_peers
from epp.page.board import Board
from epp.peers.circle import Circle
from epp.peers.hearing import Hearing
from epp.peers.telling import Telling
from epp.pipeline import Pipeline, retire, types_of
from epp.plugin import Observer
from epp.pool import Pool
from epp.router import Reader, Router
from epp.rules import RuleBook
from epp.serve.counts import (
    ScrapeCounts,
    StreamCounts,
    watch_encoders,
    watch_events,
    watch_peers,
    watch_pipeline,
    watch_speeds,
)
from epp.serve.options import ServeOptions
from epp.serve.origin import collecting_of, scraping_of
from epp.serve.watching import Watching
from epp.telemetry.log import Seldom
from epp.telemetry.metrics import Metrics
from epp.wrap.traced import Tracer

if TYPE_CHECKING:
    from epp.peers.sharing import Sharing

log = logging.getLogger(__name__)

Told = tuple[str | None, str]  #: a configuration's text, None for the built-in; where it is from
Read = Callable[[], Told]  #: may raise `ConfigError`


class Shared(msgspec.Struct, frozen=True):
    """What the lanes of a process have in common."""

    options: ServeOptions
    clock: Clock
    catalog: Catalog
    seldom: Seldom  #: warns, each kind of thing at most once in a while
    tracer: Tracer | None = None
    reader: Reader | None = None  #: of bodies that take long
    peers: Sharing | None = None  #: with other pickers


class Lane:
    """Serves one pool.

    Args:
        name: the pool's, for metrics and pages.
        shared: with other lanes.
        metrics: counts what happens here.
        read: tells the configuration.

    Raises:
        ConfigError: the configuration is wrong.
    """

    def __init__(self, name: str, shared: Shared, metrics: Metrics, read: Read) -> None:
        options, clock = shared.options, shared.clock
        self.pool = Pool(name)
        self.ledger = Ledger()
        self.metrics = metrics
        self.book = RuleBook(tell=metrics.rewritten)
        self.board = Board(self.pool, self.ledger, metrics.store, clock)
        self.watching = Watching(options, metrics, ledger=self.ledger, clock=clock, pool=name)
        self.last_error = ""  #: why the last reload was refused; "" if it was not
        self._shared = shared
        self.circle = None if shared.peers is None else self._circle_of(shared.peers)
        self._resting: set[str] = set()  #: names of plugins left out for their faults
        self._parts = self._parts_of()
        text, source = read()
        self.loaded, pipeline = configure(text, self._parts, source=source)
        self._warn(self.loaded.warnings, pipeline)
        self.router = Router(
            self.pool,
            pipeline,
            self.ledger,
            clock=clock,
            on_observer_error=self._observer_error,
            heed_subset=not options.disable_endpoint_subset_filter,
            reader=shared.reader,
        )
        answering = Answering(lambda: self.router.pipeline, self.watching.answer_headers)
        self.answer_headers: Callable[[Exchange], Mapping[str, str]] = answering.headers
        self.answer_metadata = answering.metadata
        self.counters = StreamCounts(metrics)
        retire(None, pipeline, self.pool)
        for forget in (self.ledger.forget, self.board.traffic.forget, *self.watching.forgets):
            self.pool.on_forget(forget)
        metrics.plugin_types = types_of(pipeline)
        metrics.watch_pool(name, self.pool.snapshot, self.ledger)
        watch_pipeline(metrics, lambda: self.router.pipeline, self.pool)
        watch_events(metrics, lambda: self.router.pipeline, self.pool)
        watch_encoders(metrics, lambda: self.router.pipeline, self.pool)
        watch_speeds(metrics, self.watching.forecaster, self.pool)
        if self.circle is not None:
            watch_peers(metrics, self.circle)

    @property
    def unfit(self) -> str:
        """The parsers that can read nothing of what the endpoints speak; "" if there are none."""
        return ", ".join(self.router.pipeline.formats.unfit(self.pool.protocol))

    @property
    def ready(self) -> bool:
        """Whether the endpoints are known, and speak what every parser reads."""
        return self.pool.synced and not self.unfit

    @property
    def times(self) -> Metrics:
        """Told what answers take."""
        return self.metrics

    @property
    def parts(self) -> Parts:
        """What the pipeline is built with."""
        return self._parts

    def reload(self, read: Read, why: str) -> bool:
        """Read the configuration again; what is wrong with it changes nothing.

        Returns:
            Whether the endpoints are to be scraped in another way, which `work` would do.
        """
        before = self.router.pipeline
        try:
            text, source = read()
            loaded, pipeline = configure(text, self._parts, previous=before, source=source)
        except ConfigError as error:
            self.refuse(str(error), why)
            return False
        self._warn(loaded.warnings, pipeline)
        refitted: bool = collecting_of(loaded, pipeline) != collecting_of(self.loaded, before)
        self.router.reload(pipeline)
        retire(before, pipeline, self.pool)
        self._enable(before, pipeline)
        self.loaded, self.last_error = loaded, ""
        self.metrics.plugin_types = types_of(pipeline)
        self.metrics.reloaded(ok=True)
        log.info("%sthe configuration was read again (%s)", self._label, why)
        return refitted

    def refuse(self, error: str, why: str) -> None:
        """Say that what was to be the configuration is none."""
        self.last_error = error
        self.metrics.reloaded(ok=False)
        log.error("%sthe configuration stays as it was (%s): %s", self._label, why, error)

    def work(self) -> Mapping[str, Coroutine[Any, Any, None]]:
        """What is to run all the time, by name, besides what tells the endpoints."""
        feeds = follow(lambda: self.plugins, self.pool, self._shared.clock)
        always = {"scrape": self._scraper(), "board": self.board.run(), "feeds": feeds}
        peers, circle = self._shared.peers, self.circle
        shared = {} if peers is None or circle is None else {"peers": peers.serve(circle)}
        return {**always, **shared, **self.watching.tasks}

    def _scraper(self) -> Coroutine[Any, Any, None]:
        """Scrape the endpoints, as the configuration says now, until cancelled."""
        settings, engines = scraping_of(self._shared.options, self.plugins.values())
        scraper = Scraper(
            settings,
            engines,
            clock=self._shared.clock,
            random=random.Random(),
            ledger=self.ledger,
            reports=ScrapeCounts(self.metrics, self._shared.seldom),
        )
        return scraper.run(self.pool)

    @property
    def plugins(self) -> Mapping[str, Any]:
        """Every plugin instance by its configured name."""
        return self.router.pipeline.plugins

    def config_page(self) -> Any:
        """What ``/debug/config`` shows."""
        return {
            "source": self.loaded.source or "built in",
            "current": not self.last_error,
            "lastError": self.last_error,
            "warnings": self.loaded.warnings,
            "config": self.loaded.config,
        }

    def _parts_of(self) -> Parts:
        shared, options = self._shared, self._shared.options
        return Parts(
            clock=shared.clock,
            random=random.Random(),
            ledger=self.ledger,
            pool=self.pool,
            book=self.book,
            catalog=shared.catalog,
            allow_experimental=options.allow_experimental_plugins,
            extra_observers=(
                *self.watching.observers,
                self.board.traffic,
                *(() if self.circle is None else (self.circle.telling,)),
            ),
            witness=self.watching.receipts,
            forecaster=self.watching.forecaster,
            emit_scores=options.emit_endpoint_scores,
            on_fault=self._plugin_fault,
            timings=self.metrics,
            tracer=shared.tracer,
        )

    def _circle_of(self, peers: Sharing) -> Circle:
        clock, forecaster = self._shared.clock, self.watching.forecaster
        return peers.circle(
            self.pool,
            Telling(self.ledger, lambda: self.router.pipeline, clock),
            Hearing(
                self.pool,
                self.ledger,
                forecaster,
                lambda: self.plugins,
                clock,
                books=lambda: heeds_peers(self.plugins.values()),
            ),
        )

    @property
    def _label(self) -> str:
        """What begins a line of the log where there are several pools."""
        return f"pool {self.pool.name}: " if self._shared.options.many_pools else ""

    def _warn(self, warnings: tuple[str, ...], pipeline: Pipeline) -> None:
        for warning in (*warnings, *pipeline.warnings):
            log.warning("%s%s", self._label, warning)

    def _observer_error(self, observer: Observer, error: Exception) -> None:
        name = type(observer).__name__
        self.metrics.plugin_failed(name, "raised")
        said = f"{self._label}{name} raised {type(error).__name__}"
        self._shared.seldom(said, kind=f"{self._label}{name}")

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
        said = f"{self._label}plugin {name!r}: {kind}"
        self._shared.seldom(said, kind=f"{self._label}{name} {kind}")
