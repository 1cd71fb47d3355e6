"""Reads every endpoint's ``/metrics`` into its `Load`, for ever.

One task per endpoint, so that a hung one delays no other; started at once when the endpoint
appears, cancelled when it is gone. A load that grows too old is taken away: no load is
better than a wrong one. Twice refused means that nothing listens there; any HTTP answer, 404 too,
means that something does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random

import msgspec

from epp.clock import Clock
from epp.collect.fetch import Fetcher, NoPage, Source
from epp.collect.pace import Pace
from epp.collect.parse.engines import Engines
from epp.collect.parse.history import History
from epp.ledger import Ledger
from epp.model import Endpoint, EndpointId
from epp.pool import Pool

SWEEP_SECONDS = 0.2  #: between looks for loads that are too old
WARN_SECONDS = 60.0  #: between two warnings about stale endpoints
REFUSED_TIMES = 2  #: in a row, before an endpoint counts as unreachable

log = logging.getLogger(__name__)


class Reports:
    """Is told what happens; this one does nothing. Overwrite what is of interest."""

    def scrape_failed(self, reason: str) -> None:
        """A scrape brought no page, or ("unknown_page") one without anything we know."""

    def lines_unreadable(self, count: int) -> None:
        """That many lines of a page were wanted and broken."""

    def warn(self, text: str) -> None:
        """Something an operator should look at; at most once in `WARN_SECONDS`."""


class ScrapeSettings(msgspec.Struct, frozen=True):
    """Where pages are and how often they are read."""

    source: Source = Source()
    pace: Pace = Pace()


class Scraper:
    """Keeps the loads of a pool's endpoints fresh."""

    def __init__(
        self,
        settings: ScrapeSettings,
        engines: Engines,
        *,
        clock: Clock,
        random: random.Random,
        ledger: Ledger | None = None,
        reports: Reports | None = None,
    ) -> None:
        """Scrape as ``settings`` say and read pages as ``engines`` do.

        ``random`` jitters the intervals; ``ledger`` tells which endpoints we keep busy.
        """
        self.stale = 0  #: endpoints whose load should be known and is not
        self._source = settings.source
        self._pace = settings.pace
        self._engines = engines
        self._clock = clock
        self._random = random
        self._ledger = ledger or Ledger()
        self._reports = reports or Reports()
        self._targets: dict[EndpointId, _Target] = {}
        self._demand = 0.0  #: scrapes a second that all targets together want
        self._warned_at = -WARN_SECONDS

    async def run(self, pool: Pool) -> None:
        """Scrape until cancelled.

        Raises:
            ConfigError: a certificate file cannot be used.
        """
        fetcher = Fetcher(self._source, timeout=self._pace.timeout)
        changed = asyncio.Event()
        changed.set()
        pool.on_members(changed.set)
        try:
            async with fetcher, asyncio.TaskGroup() as tasks:
                while True:
                    if changed.is_set():
                        changed.clear()
                        self._follow(pool, tasks, fetcher)
                    self._sweep(pool)
                    await _within(SWEEP_SECONDS, changed)
        finally:
            pool.off_members(changed.set)

    def _follow(self, pool: Pool, tasks: asyncio.TaskGroup, fetcher: Fetcher) -> None:
        endpoints = pool.snapshot()
        here = {endpoint.id for endpoint in endpoints}
        left = [t.id for t in self._targets.values() if t.task is not None and t.task.done()]
        for gone in (self._targets.keys() - here).union(left):
            target = self._targets.pop(gone)
            self._demand -= 1 / target.wanted
            if target.task is not None:
                target.task.cancel()
        new = [endpoint for endpoint in endpoints if endpoint.id not in self._targets]
        for index, endpoint in enumerate(new):
            target = _Target(endpoint, self._pace.fast, self._clock.now())
            self._targets[endpoint.id] = target
            self._demand += 1 / target.wanted
            delay = index / (2 * self._pace.max_per_second)  # a whole fleet at once is too much
            work = self._scrape_for_ever(pool, target, fetcher, delay)
            target.task = tasks.create_task(work, name=f"scrape {endpoint.address}")

    async def _scrape_for_ever(
        self, pool: Pool, target: _Target, fetcher: Fetcher, delay: float
    ) -> None:
        await asyncio.sleep(delay)
        while (endpoint := pool.get(target.id)) is not None:
            try:
                self._read(pool, target, await fetcher.get(endpoint))
            except NoPage as error:
                self._failed(pool, target, error)
            except Exception:  # one endpoint's bug must not end the scraping of the others
                log.exception("scraping %s failed", endpoint.address)
                self._fail(target, "internal")
            await asyncio.sleep(target.interval * self._random.uniform(0.9, 1.1))

    def _read(self, pool: Pool, target: _Target, page: bytes) -> None:
        endpoint = pool.get(target.id)
        if endpoint is None:
            return
        target.refused = 0
        pool.set_reachable(target.id, reachable=True)
        reading = self._engines.read(page, self._clock.now(), endpoint.labels)
        if reading.unreadable:
            self._reports.lines_unreadable(reading.unreadable)
        if not reading.found:
            self._fail(target, "unknown_page")
            return
        conclusion = target.history.take(reading)
        if conclusion.restarted:
            pool.restarted(target.id)
        pool.set_load(target.id, conclusion.load)
        in_flight = self._ledger.get(target.id).requests
        self._plan(target, self._pace.wanted(target.wanted, conclusion.load, in_flight))

    def _failed(self, pool: Pool, target: _Target, error: NoPage) -> None:
        if error.answered:
            target.refused = 0
            pool.set_reachable(target.id, reachable=True)
        elif error.reason != "refused":
            target.refused = 0  # no answer in time says nothing about who listens
        elif self._source.port is None:  # another port's refusal says nothing about this one
            target.refused += 1
            if target.refused >= REFUSED_TIMES:
                pool.set_reachable(target.id, reachable=False)
        self._fail(target, error.reason)

    def _fail(self, target: _Target, reason: str) -> None:
        target.reason = reason
        self._reports.scrape_failed(reason)
        self._plan(target, self._pace.wanted(target.wanted, None, 0))

    def _plan(self, target: _Target, wanted: float) -> None:
        self._demand += 1 / wanted - 1 / target.wanted
        target.wanted = wanted
        target.interval = self._pace.stretched(wanted, self._demand)

    def _sweep(self, pool: Pool) -> None:
        """Take away loads that are too old; count and tell."""
        now = self._clock.now()
        stale = 0
        example = ""
        for target in self._targets.values():
            endpoint = pool.get(target.id)
            if endpoint is None:
                continue
            at = target.since if endpoint.load is None else endpoint.load.at
            if now - at <= self._pace.stale_age(target.interval):
                continue
            if endpoint.load is not None:
                target.since = at
                pool.set_load(target.id, None)
            stale += 1
            example = f"{endpoint.address}: {target.reason or 'no answer yet'}"
        self.stale = stale
        if stale and now - self._warned_at >= WARN_SECONDS:
            self._warned_at = now
            self._reports.warn(
                f"{stale} of {len(self._targets)} endpoints have stale metrics ({example})"
            )


async def _within(seconds: float, event: asyncio.Event) -> None:
    """Return when ``event`` is set, after ``seconds`` at the latest."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


class _Target:
    """One endpoint, as it is being scraped."""

    __slots__ = ("history", "id", "interval", "reason", "refused", "since", "task", "wanted")

    def __init__(self, endpoint: Endpoint, interval: float, now: float) -> None:
        self.id = endpoint.id
        self.history = History()
        self.wanted = interval  #: seconds, before the common limit
        self.interval = interval  #: seconds to the next scrape
        self.since = now  #: the load has been unknown at least since then, if it is unknown
        self.refused = 0  #: connections refused in a row
        self.reason = ""  #: why the last failed scrape failed
        self.task: asyncio.Task[None] | None = None
