"""Exchanges whose answer we do not see: held until somebody tells how they ended.

In the lean mode Envoy closes the ext_proc stream once the request is on its way; the request
itself runs on. Its booking must stay in the ledger until then, and neither may stay for ever:

* an access-log entry of it ends it (the normal case, some 50 ms late);
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

Whose an entry is: request ids are the client's, who may use one for several requests, and again at
once. So each exchange has a name of our own, which goes to the gateway with the pick, as dynamic metadata,
and comes back in the entry.

* An entry with a name is that exchange's, and of no other, whatever its id. If the name was given by
  another picker, it is told to that one, where pickers tell each other (see `peers.entries`).
* A gateway that does not take the name over tells ids only: such an entry ends one of that id that went
  where it says, if there is one, and else the oldest. Of an answer that broke off we know the status,
  so an entry with another one is not of it.
* A log that tells names has entries without: those of requests that were not ours to route, and
  those whose client left before the gateway had our pick. See `Unseen.untaken`. Which kind of log it is,
  its first name tells.

An entry may overtake the end of its own stream, so it is kept for a moment (`entry.Early`).
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Protocol

from epp.clock import Clock
from epp.exchange import Exchange
from epp.feedback.entry import Early, Entry, digest, fits
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
ON_ITS_WAY = 0.5  #: seconds at most, until the gateway has a pick: a client that left later left it
TOLD_AFTER = 2.0  #: seconds at most, until the gateway tells that a client left; Envoy's usual is 1
RUN = 16  #: characters of a name that tell who gave it


class Knows(Protocol):
    """Knows endpoints, as a `Pool` does."""

    def get(self, endpoint_id: EndpointId) -> Endpoint | None:
        """The endpoint of that id, if it is here."""
        ...


class Unseen:
    """Open exchanges without an answer stream.

    Args:
        pool: the endpoints that there are.
        clock: tells the time.
        run: begins the names that are given here, `RUN` characters; drawn if it is not told.
        forward: tells an entry to the picker that named its exchange, or to all if it has no name;
            returns whether it can.
    """

    def __init__(
        self,
        pool: Knows,
        clock: Clock,
        *,
        run: str = "",
        forward: Callable[[Entry], bool] = lambda _entry: False,
    ) -> None:
        self.logs_here = 0  #: access-log streams open to this picker now
        self.logs_lost = 0  #: those that ended, so far
        self.strange = 0  #: entries that cannot be of an exchange of this process, so far
        self.reaped = 0  #: exchanges ended without an entry, so far
        self._pool = pool
        self._clock = clock
        #: Begins the names that are given here: entries of other replicas' exchanges come here, too,
        #: and of those from before a restart.
        self._run = run or secrets.token_hex(RUN // 2)
        self._forward = forward
        self._logs_elsewhere = 0  #: open to pickers that we hear
        self._names = 0  #: given so far
        self._has_no_log = False  #: an answer broke off, and nobody told why
        self._log_lost_at = -math.inf  #: when a log last ended; what it had not sent is lost
        self._open: dict[str, dict[Exchange, float]] = {}  #: by id: since when, oldest first
        self._named: dict[str, Exchange] = {}  #: the same, by name
        self._early = Early(clock)
        self._shortfall = Shortfall()

    def __len__(self) -> int:
        return sum(map(len, self._open.values()))

    @property
    def unmatched(self) -> int:
        """Entries that no exchange ever claimed, so far."""
        return self.strange + self._early.unclaimed

    def log_opened(self) -> None:
        """A gateway opened its access log."""
        self.logs_here += 1
        self._has_no_log = False

    def log_closed(self) -> None:
        """It ended, however."""
        self.logs_here -= 1
        self.logs_lost += 1
        self._log_lost_at = self._clock.now()

    def logs_of_others(self, opened: int, *, lost: bool) -> None:
        """Note that logs of pickers that we hear come and go.

        Args:
            opened: how many more are open now than before; less than 0 if some ended.
            lost: what one of them had not told us is lost.
        """
        self._logs_elsewhere += opened
        if opened > 0:
            self._has_no_log = False
        if lost:
            self._log_lost_at = self._clock.now()

    @property
    def logs_connected(self) -> int:
        """Logs that may tell of our exchanges: to this picker, and to those that tell us."""
        return self.logs_here + self._logs_elsewhere

    @property
    def asks_why(self) -> bool:
        """Whether an entry may come of an answer that breaks off now."""
        return not self._has_no_log

    def name(self, exchange: Exchange) -> str:
        """Name ``exchange`` towards the gateway, before the pick goes there."""
        self._names += 1
        exchange.name = name = f"{self._run}{self._names:012x}"
        return name

    def adopt(self, exchange: Exchange) -> None:
        """Keep ``exchange`` open until something tells how it ended."""
        early = self._early.take(exchange)
        if early is not None:
            _end(exchange, early)
            return
        if exchange.name:
            self._named[exchange.name] = exchange
        same = self._open.setdefault(as_logged(exchange.request.id), {})
        same[exchange] = self._clock.now()

    def entry(self, entry: Entry) -> None:
        """Take one access-log entry. Duplicates and strangers change nothing."""
        if entry.name:
            exchange = self._named.get(entry.name)
            if exchange is None and not entry.name.startswith(self._run):
                self.strange += not self._forward(entry)
                return
        else:
            waiting = self._open.get(entry.request_id)
            exchange = None if waiting is None else _meant(waiting, entry)
        if exchange is None:
            self._early.keep(entry)
        else:
            self._forget(exchange)
            _end(exchange, entry)

    def untaken(self, entry: Entry) -> None:
        """Take an entry without a name of a log that tells names.

        It is of an exchange only if its client left while the pick was on its way: no endpoint served it
        then, and the time fits. Others are of requests that did not come to us, or left before a pick.
        """
        if entry.outcome is Outcome.ABANDONED and not entry.served:
            exchange = _left(self._open.get(entry.request_id, {}), entry, self._clock.now())
            if exchange is None:
                self.strange += not self._forward(entry)
            else:
                self._forget(exchange)
                _end(exchange, entry)
            return
        self.strange += 1

    def untaken_elsewhere(self, entries: Mapping[int, Entry]) -> None:
        """Take such entries from other pickers, by the `digest` of their ids; most are not of ours.

        O(exchanges of the last seconds).
        """
        now = self._clock.now()
        found = []
        for request_id, same in reversed(self._open.items()):
            if next(reversed(same.values())) < now - TOLD_AFTER - ON_ITS_WAY:
                break  # what is older cannot be meant
            entry = entries.get(digest(request_id))
            exchange = None if entry is None else _left(same, entry, now)
            if entry is not None and exchange is not None:
                found.append((exchange, entry))
        for exchange, entry in found:
            self._forget(exchange)
            _end(exchange, entry)

    def _forget(self, exchange: Exchange) -> None:
        self._named.pop(exchange.name, None)
        request_id = as_logged(exchange.request.id)
        same = self._open[request_id]
        del same[exchange]
        if not same:
            del self._open[request_id]

    def sweep(self) -> None:
        """Release and end what the evidence allows. Call it a few times a second.

        O(open exchanges).
        """
        now = self._clock.now()
        self._early.drop_old()
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
        self._forget(exchange)
        self.reaped += not exchange.broken
        self._has_no_log |= exchange.broken and not self.logs_connected
        exchange.end(Outcome.ABANDONED if exchange.broken else Outcome.UNKNOWN)


def _meant(waiting: dict[Exchange, float], entry: Entry) -> Exchange | None:
    """Return whose of one id an entry is that tells no name."""
    may = [exchange for exchange in waiting if fits(exchange, entry)]
    if len(may) > 1 and entry.served:
        for exchange in may:
            if exchange.pick.endpoints[0].address == entry.served:
                return exchange
    return may[0] if may else None


def _left(same: dict[Exchange, float], entry: Entry, now: float) -> Exchange | None:
    """Return whose client left while its pick was on its way, of those of one id: the newest."""
    seconds = entry.seconds or 0.0
    return next((each for each in reversed(same) if _left_unpicked(each, seconds, now)), None)


def _left_unpicked(exchange: Exchange, seconds: float, now: float) -> bool:
    """Whether a client that left ``seconds`` after its request was whole may have been its.

    What broke off ends soon, as abandoned: to say so sooner is not worth taking another's for it.
    """
    if exchange.broken:
        return False
    arrived_at = exchange.request.arrived_at
    in_time = seconds <= exchange.picked_at - arrived_at + ON_ITS_WAY
    return in_time and now - (arrived_at + seconds) <= TOLD_AFTER


def _scraped(endpoint: Endpoint, after: float) -> bool:
    return endpoint.load is not None and endpoint.load.at >= after


def _end(exchange: Exchange, entry: Entry) -> None:
    exchange.told(entry)
    exchange.end(entry.outcome, status=entry.status, served=entry.served)
