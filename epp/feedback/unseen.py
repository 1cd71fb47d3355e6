"""Exchanges whose answer we do not see: held until somebody tells how they ended.

In the lean mode Envoy closes the ext_proc stream once the request is on its way; the request
itself runs on. Its booking must stay in the ledger until then, and neither may stay for ever:

* an access-log entry of its request id ends it (the normal case, some 50 ms late);
* its endpoint is gone, or a scrape taken a while after the pick shows nothing queued or running;
* at the very latest after `MAX_AGE` seconds.

An answer that passed through us and broke off is over, and was the client's doing or the engine's.
Only an entry tells: without one for `BROKEN_SECONDS` the client is taken to have left. Envoy opens
its log only when it has something to tell, so the first is waited for, too; if none comes, no other
is waited for until a log is opened: not every gateway has one.

An entry may never come: Envoy opens its log only when its first request has ended, and loses what
it has not sent when the log breaks. So without a log, and for those that were open when one broke,
the booking alone is released as soon as a scrape has seen the request, since from then on the
scraped load counts it. The exchange stays open for an entry that still tells the truth. So it does
where scrapes have long counted fewer requests than are booked: the oldest bookings go, see `shortfall`.

An entry may overtake the end of its own stream, so unmatched entries are kept for a moment.
Clients may use an id for several requests at a time: an entry ends one that went where it says,
if there is one, and else the oldest.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from operator import itemgetter
from typing import Protocol

from epp.clock import Clock
from epp.exchange import Exchange, Told
from epp.feedback.logged import as_logged
from epp.feedback.shortfall import Shortfall
from epp.model import Endpoint, EndpointId, Outcome

MAX_AGE = 3600.0  #: seconds an exchange may stay unseen, whatever the evidence
BROKEN_SECONDS = 5.0  #: that an entry is waited for of an answer that broke off
SEEN_AFTER = 1.0  #: seconds after which a scrape must include a request that was forwarded
EMPTY_AFTER = 5.0
"""Seconds after which a scrape that shows an empty engine tells of an end, and not of a request
whose upload is slow."""
RELEASED = 4096  #: exchanges kept open without a booking: some gateways never open a log
EARLY_ENTRIES = 4096  #: entries kept that came before their stream ended
EARLY_SECONDS = 5.0  #: and for how long: a client may use its request id again later
EARLY_ID = 1024  #: characters of an id that is kept so: clients make ids up


class Knows(Protocol):
    """Knows endpoints, as a `Pool` does."""

    def get(self, endpoint_id: EndpointId) -> Endpoint | None:
        """The endpoint of that id, if it is here."""
        ...


class Entry(Told, frozen=True):
    """What the gateway's access log says about one request."""

    request_id: str  #: see `logged.as_logged`
    outcome: Outcome
    status: int | None = None
    served: str = ""  #: ``host:port`` of the endpoint that answered


class Unseen:
    """Open exchanges without an answer stream, by request id."""

    def __init__(self, pool: Knows, clock: Clock) -> None:
        self.logs_connected = 0  #: access-log streams open now
        self.unmatched = 0  #: entries that no exchange ever claimed, so far
        self.reaped = 0  #: exchanges ended without an entry, so far
        self._pool = pool
        self._clock = clock
        self._has_no_log = False  #: an answer broke off, and nobody told why
        self._log_lost_at = -math.inf  #: when a log last ended; what it had not sent is lost
        self._open: dict[str, dict[Exchange, float]] = {}  # since when, oldest first
        self._early: OrderedDict[str, tuple[Entry, float]] = OrderedDict()
        self._shortfall = Shortfall()

    def __len__(self) -> int:
        return sum(map(len, self._open.values()))

    def log_opened(self) -> None:
        """A gateway opened its access log."""
        self.logs_connected += 1
        self._has_no_log = False

    def log_closed(self) -> None:
        """It ended, however."""
        self.logs_connected -= 1
        self._log_lost_at = self._clock.now()

    @property
    def asks_why(self) -> bool:
        """Whether an entry may come of an answer that breaks off now."""
        return not self._has_no_log

    def adopt(self, exchange: Exchange) -> None:
        """Keep ``exchange`` open until something tells how it ended."""
        now, request_id = self._clock.now(), as_logged(exchange.request.id)
        early = self._early.pop(request_id, None)
        if early is not None and early[1] >= max(exchange.picked_at, now - EARLY_SECONDS):
            _end(exchange, early[0])
            return
        self._open.setdefault(request_id, {})[exchange] = now

    def entry(self, entry: Entry) -> None:
        """Take one access-log entry. Duplicates and strangers change nothing."""
        waiting = self._open.get(entry.request_id)
        if waiting is None:
            self._keep(entry)
            return
        exchange = _meant(waiting, entry.served)
        del waiting[exchange]
        if not waiting:
            del self._open[entry.request_id]
        _end(exchange, entry)

    def _keep(self, entry: Entry) -> None:
        before = self._early.pop(entry.request_id, None)
        self.unmatched += before is not None
        if len(entry.request_id) > EARLY_ID:
            self.unmatched += 1
            return
        self._early[entry.request_id] = (entry, self._clock.now())
        if len(self._early) > EARLY_ENTRIES:
            self._early.popitem(last=False)
            self.unmatched += 1

    def _drop_early(self, until: float) -> None:
        while self._early and next(iter(self._early.values()))[1] < until:
            self._early.popitem(last=False)
            self.unmatched += 1

    def sweep(self) -> None:
        """Release and end what the evidence allows. Call it a few times a second.

        O(open exchanges).
        """
        now = self._clock.now()
        self._drop_early(now - EARLY_SECONDS)
        released: list[Exchange] = []
        booked: dict[EndpointId, list[tuple[float, Exchange]]] = {}
        for exchange, since in [each for same in self._open.values() for each in same.items()]:
            if self._is_over(exchange, since, now):
                self._reap(exchange)
            elif exchange.released or self._may_release(exchange, since):
                exchange.release()
                released.append(exchange)
            else:
                booked.setdefault(exchange.pick.endpoints[0].id, []).append((since, exchange))
        for exchange in released[:-RELEASED]:
            self._reap(exchange)
        self._shortfall.keep(booked.keys())
        for endpoint_id, exchanges in booked.items():
            self._release_what_is_over(endpoint_id, exchanges)

    def _release_what_is_over(
        self, endpoint_id: EndpointId, exchanges: list[tuple[float, Exchange]]
    ) -> None:
        endpoint = self._pool.get(endpoint_id)
        load = None if endpoint is None else endpoint.load
        at = math.inf if load is None else load.at
        counted = [waiting for waiting in exchanges if waiting[0] + SEEN_AFTER <= at]
        over = self._shortfall.over(endpoint_id, load, len(counted))
        for _, exchange in sorted(counted, key=itemgetter(0))[:over]:
            exchange.release()

    def _is_over(self, exchange: Exchange, since: float, now: float) -> bool:
        if exchange.broken:
            return now - since > BROKEN_SECONDS
        endpoint = self._pool.get(exchange.pick.endpoints[0].id)
        if endpoint is None or now - since > MAX_AGE:
            return True
        load = endpoint.load
        empty = load is not None and load.queued == 0 and load.running == 0
        return empty and _scraped(endpoint, since + EMPTY_AFTER)

    def _may_release(self, exchange: Exchange, since: float) -> bool:
        if self.logs_connected and since > self._log_lost_at:
            return False
        endpoint = self._pool.get(exchange.pick.endpoints[0].id)
        return endpoint is not None and _scraped(endpoint, since + SEEN_AFTER)

    def _reap(self, exchange: Exchange) -> None:
        request_id = as_logged(exchange.request.id)
        same = self._open[request_id]
        del same[exchange]
        if not same:
            del self._open[request_id]
        self.reaped += not exchange.broken
        self._has_no_log |= exchange.broken and not self.logs_connected
        exchange.end(Outcome.ABANDONED if exchange.broken else Outcome.UNKNOWN)


def _meant(waiting: dict[Exchange, float], served: str) -> Exchange:
    if len(waiting) > 1 and served:
        for exchange in waiting:
            if exchange.pick.endpoints[0].address == served:
                return exchange
    return next(iter(waiting))


def _scraped(endpoint: Endpoint, after: float) -> bool:
    return endpoint.load is not None and endpoint.load.at >= after


def _end(exchange: Exchange, entry: Entry) -> None:
    exchange.told(entry)
    exchange.end(entry.outcome, status=entry.status, served=entry.served)
