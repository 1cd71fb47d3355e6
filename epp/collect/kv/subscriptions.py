"""The feeds of one ``precise-prefix-cache-producer``: those of all endpoints, as they come and go.

Nothing waits for a feed: an endpoint serves while its events are asked for, and what is known of
its cache grows meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path

from epp.clock import Clock
from epp.collect.fetch import Fetcher, NoPage, Source
from epp.collect.kv import listings
from epp.collect.kv.central import Central
from epp.collect.kv.discovery import PATH, configured, told
from epp.collect.kv.feed import Feed
from epp.collect.kv.link import Line, Link, Where
from epp.collect.kv.listings import Listings
from epp.collect.kv.pump import Pump
from epp.collect.kv.sockets import context
from epp.collect.kv.turns import Turn
from epp.collect.parse.endpoints import engine_rank
from epp.model import Endpoint, EndpointId
from epp.pool import Pool
from epp.prefix.feed.audit import Audit
from epp.prefix.precise import PrecisePrefixCacheProducer
from epp.prefix.precise_settings import CurveConfig

TICK_SECONDS = 0.1
ROTATE_SECONDS = 5.0  #: between two looks for other secrets
EXPIRE_SECONDS = 0.25  #: between two looks for what was expected in vain
PAGE_SECONDS = 2.0  #: that an engine may take to tell where it publishes
SURE_SECONDS = 5.0  #: from the loss of a feed until its engine is asked where it is
AT_ONCE = 32  #: engines that are asked
MOST_NAMES = 65_536  #: of engines that connect to us
SWEEP = 8  #: segments of dropped engines swept in each tick
OPENED = 8  #: endpoints whose sockets are opened in each tick, 0.2 ms each
LOOKED_AFTER = 200  #: endpoints whose feeds are looked after in each tick, 5 us each

_log = logging.getLogger(__name__)


class _Asking(Turn):
    """When an endpoint is next asked where it publishes, if it has not told or moved since."""

    answered: bool = False


class Subscriptions:
    """From `run` until that is cancelled.

    Args:
        producer: gets all that is told.
        pool: its endpoints are subscribed to.
    """

    def __init__(self, producer: PrecisePrefixCacheProducer, pool: Pool, clock: Clock) -> None:
        self.producer = producer
        self._pool = pool
        self._clock = clock
        self._links: dict[EndpointId, dict[int, Link]] = {}
        self._asking: dict[EndpointId, _Asking] = {}
        self._named: dict[tuple[str, int], Link] = {}  # by topic's name of the pod and rank
        self._searched: Sequence[Endpoint] = ()
        self._strangers = set[str]()  # names of none of these: their messages come again and again
        self._tasks: set[asyncio.Task[None]] = set()
        self._listings = Listings(producer.names, pool, clock)
        self._expired_at = self._rotated_at = 0.0
        self._ticks = 0
        self._wrong = ""  # with the file of secrets

    async def run(self) -> None:
        """Subscribe to all endpoints that there are, at any time."""
        events = self.producer.params.kv_events_config
        where = context()
        self._line = Line(where, Pump(), self._clock, curve=_curve(events.curve))
        central = None
        self._pool.on_forget(self._forget)
        try:
            if events.zmq_endpoint:
                central = Central(events.zmq_endpoint, events.topic_filter, self._line, self._of)
            async with (
                Fetcher(Source(path=PATH), timeout=PAGE_SECONDS) as fetcher,
                Fetcher(Source(path=listings.PATH), timeout=PAGE_SECONDS) as lister,
            ):
                while True:
                    self._follow(fetcher)
                    self._listings.tick(lister)
                    self._tick()
                    await asyncio.sleep(TICK_SECONDS)
        finally:
            self._pool.off_forget(self._forget)
            self._listings.close()
            for task in self._tasks:
                task.cancel()
            for endpoint_id in list(self._links):
                self._leave(endpoint_id)
            if central is not None:
                central.close()
            where.destroy(0)

    def _follow(self, fetcher: Fetcher) -> None:
        """Open feeds of endpoints that are new, and ask those that have not told where they are."""
        events, now = self.producer.params.kv_events_config, self._clock.now()
        if not events.discover_pods or events.zmq_endpoint:
            return
        ports = events.pod_discovery_config
        new = (each for each in self._pool.snapshot() if each.id not in self._links)
        for endpoint in islice(new, OPENED):
            self._links[endpoint.id] = {}
            if ports.ask_sources:
                self._asking[endpoint.id] = _Asking(now)
            else:
                self._open(endpoint, configured(endpoint, ports))
        for endpoint_id, asking in list(self._asking.items()):
            if asking.answered and not self._is_lost(endpoint_id):
                asking.done(now + SURE_SECONDS)
            elif now >= asking.at and len(self._tasks) < AT_ONCE:
                asking.begin(now)
                self._begin_asking(fetcher, endpoint_id, asking)

    def _is_lost(self, endpoint_id: EndpointId) -> bool:
        """Whether a feed is not connected: one that began again may publish somewhere else."""
        links = self._links.get(endpoint_id, {}).values()
        return any(
            link.where.events and not link.feed.engine.confidence.connected for link in links
        )

    def _begin_asking(self, fetcher: Fetcher, endpoint_id: EndpointId, asking: _Asking) -> None:
        endpoint = self._pool.get(endpoint_id)
        if endpoint is None:
            del self._asking[endpoint_id]
            return
        task = asyncio.create_task(self._ask(fetcher, endpoint, asking))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _ask(self, fetcher: Fetcher, endpoint: Endpoint, asking: _Asking) -> None:
        """Open the feeds that an endpoint tells of; those configured if it does not tell.

        One that told before and does not answer is left as it is: it may be about to begin again.
        """
        ports = self.producer.params.kv_events_config.pod_discovery_config
        answered = False
        where: Mapping[int, Where] = {}
        try:
            where = told(endpoint, await fetcher.get(endpoint))
            answered = True
        except NoPage as error:
            answered = error.answered
        except ValueError:
            answered = True
        told_before, asking.answered = asking.answered, asking.answered or answered
        if endpoint.id in self._links and (answered or not told_before):
            self._open(endpoint, where or configured(endpoint, ports))

    def _open(self, endpoint: Endpoint, where: Mapping[int, Where]) -> None:
        """Have exactly these feeds of an endpoint."""
        links = self._links[endpoint.id]
        moved = {rank: link for rank, link in links.items() if link.where != where.get(rank)}
        for rank in moved:
            self._close(links.pop(rank))
        for rank, each in where.items():
            if rank not in links:
                made = self._add(endpoint.id, rank, each)
                if rank in moved:
                    made.feed.engine.succeed(moved[rank].feed.engine)

    def _add(self, endpoint_id: EndpointId, rank: int, where: Where) -> Link:
        engine = self.producer.engines.add(endpoint_id, rank, can_ask=bool(where.replay))
        feed = Feed(engine, self.producer.index, self.producer.computed)
        link = Link(feed, where, self._line)
        self._links.setdefault(endpoint_id, {})[rank] = link
        link.open()
        return link

    def _of(self, pod: str, rank: int) -> Link | None:
        """Return the link of an engine that connects to us and goes by this name; None: unknown."""
        link = self._named.get((pod, rank))
        if link is not None:
            return link
        endpoints = self._pool.snapshot()
        if endpoints is not self._searched:
            self._searched, self._strangers = endpoints, set()
        if pod in self._strangers:
            return None
        every = [e for e in endpoints if pod in (e.address, e.name, e.host, e.id)]
        if not every:
            if len(self._strangers) < MOST_NAMES:
                self._strangers.add(pod)
            return None
        # Of a pod whose ranks have ports of their own, each rank is an endpoint.
        endpoint = next((e for e in every if engine_rank(e) == rank), every[0])
        own = 0 if engine_rank(endpoint) == rank else rank
        link = self._links.get(endpoint.id, {}).get(own)
        if link is None:
            ports = self.producer.params.kv_events_config.pod_discovery_config
            replay = "" if own else configured(endpoint, ports)[0].replay
            link = self._add(endpoint.id, own, Where("", replay))
        if len(self._named) < MOST_NAMES:
            self._named[pod, rank] = link
        return link

    def _tick(self) -> None:
        self._ticks += 1
        parts = 1 + len(self._links) // LOOKED_AFTER
        part = islice(self._links.items(), self._ticks % parts, None, parts)
        for endpoint_id, links in part:
            try:
                for link in links.values():
                    link.tick()
                if len(links) == 1:
                    self._audit(endpoint_id, link.feed.engine.audit)
            except Exception:  # noqa: BLE001 - one engine's oddity must not end the others' feeds
                _log.exception("KV events of %s are not read any more", endpoint_id)
                while links:
                    self._close(links.popitem()[1])
        now = self._clock.now()
        if now - self._expired_at >= EXPIRE_SECONDS:
            self._expired_at = now
            self.producer.index.expire(now)
        self._rotate(now)
        if self.producer.index.sweeping:
            self.producer.index.sweep(SWEEP)

    def _rotate(self, now: float) -> None:
        """Look for other secrets in their file, if there is one; what is wrong changes nothing."""
        named = self.producer.params.token_processor_config
        if not named.hash_seed_file or now - self._rotated_at < ROTATE_SECONDS:
            return
        self._rotated_at, wrong = now, ""
        try:
            if self.producer.rotate():
                _log.info("blocks are named by other secrets, of %s", named.hash_seed_file)
        except ValueError as error:
            wrong = str(error)
            if wrong != self._wrong:
                _log.warning("the secrets stay as they were: %s", error)
        self._wrong = wrong

    def _audit(self, endpoint_id: EndpointId, audit: Audit) -> None:
        """Compare an engine's counters, as last scraped, with what is known of it."""
        endpoint = self._pool.get(endpoint_id)
        load = None if endpoint is None else endpoint.load
        if load is not None and load.counts is not None:
            audit.counted(load.counts.queries, load.counts.hits, at=load.at)

    def _forget(self, endpoint_id: EndpointId) -> None:
        """See `pool.Forget`: the endpoint is gone, or its process is another one."""
        self._listings.forget(endpoint_id)
        if self._pool.get(endpoint_id) is None:
            self._leave(endpoint_id)
            return
        for link in self._links.get(endpoint_id, {}).values():
            link.restarted()

    def _leave(self, endpoint_id: EndpointId) -> None:
        for link in self._links.pop(endpoint_id, {}).values():
            self._close(link)
        self._asking.pop(endpoint_id, None)
        self._named.clear()
        self.producer.index.forget(endpoint_id)

    def _close(self, link: Link) -> None:
        link.close()
        self.producer.engines.remove(link.feed.engine)


def _curve(config: CurveConfig | None) -> Mapping[str, bytes]:
    """Return the options of sockets, with the keys of the files."""
    if config is None:
        return {}
    return {
        "curve_serverkey": Path(config.server_key_file).read_bytes().strip(),
        "curve_publickey": Path(config.public_key_file).read_bytes().strip(),
        "curve_secretkey": Path(config.secret_key_file).read_bytes().strip(),
    }
