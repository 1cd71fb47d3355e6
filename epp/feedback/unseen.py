"""Exchanges whose answer we do not see: held until somebody tells how they ended.

In the lean mode Envoy closes the ext_proc stream once the request is on its way; the request
itself runs on. Its booking must stay in the ledger until then, and must not stay for ever:

* an access-log entry of its request id ends it (the normal case, some 50 ms late);
* no access log is connected: the booking lives until a scrape taken well after the pick has
  seen the request, since from then on the scraped load counts it;
* its endpoint is gone, or a fresh scrape of its endpoint shows nothing queued or running;
* at the very latest after `MAX_AGE` seconds.

An entry may overtake the end of its own stream, so unmatched entries are kept for a moment.
"""

from __future__ import annotations

from collections import OrderedDict

import msgspec

from epp.clock import Clock
from epp.exchange import Exchange
from epp.model import Outcome, Usage
from epp.pool import Pool

MAX_AGE = 3600.0  #: seconds an exchange may stay unseen, whatever the evidence
SEEN_AFTER = 1.0  #: seconds after which a scrape must include a request that was forwarded
EARLY_ENTRIES = 4096  #: entries kept that came before their stream ended
EARLY_SECONDS = 5.0  #: and for how long: a client may use its request id again later


class Entry(msgspec.Struct, frozen=True):
    """What the gateway's access log says about one request."""

    request_id: str
    outcome: Outcome
    status: int | None = None
    served: str = ""  #: ``host:port`` of the endpoint that answered
    response_bytes: int | None = None
    usage: Usage | None = None


class Unseen:
    """Open exchanges without an answer stream, by request id."""

    def __init__(self, pool: Pool, clock: Clock) -> None:
        self.logs_connected = 0  #: access-log streams open now; written by `access_log`
        self.unmatched = 0  #: entries that no exchange ever claimed, so far
        self.reaped = 0  #: exchanges ended without an entry, so far
        self._pool = pool
        self._clock = clock
        self._open: dict[str, list[tuple[Exchange, float]]] = {}
        self._early: OrderedDict[str, tuple[Entry, float]] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._open.values()))

    def adopt(self, exchange: Exchange) -> None:
        """Keep ``exchange`` open until something tells how it ended."""
        now = self._clock.now()
        early = self._early.pop(exchange.request.id, None)
        if early is not None and early[1] >= max(exchange.picked_at, now - EARLY_SECONDS):
            _end(exchange, early[0])
            return
        self._open.setdefault(exchange.request.id, []).append((exchange, now))

    def entry(self, entry: Entry) -> None:
        """Take one access-log entry. Duplicates and strangers change nothing."""
        waiting = self._open.get(entry.request_id)
        if waiting is None:
            self._early[entry.request_id] = (entry, self._clock.now())
            if len(self._early) > EARLY_ENTRIES:
                self._early.popitem(last=False)
                self.unmatched += 1
            return
        exchange, _ = waiting.pop(0)
        if not waiting:
            del self._open[entry.request_id]
        _end(exchange, entry)

    def sweep(self) -> None:
        """End what the evidence says is over. Call it a few times a second. O(open exchanges)."""
        now = self._clock.now()
        for request_id, waiting in list(self._open.items()):
            left = [(x, since) for x, since in waiting if not self._is_over(x, since, now)]
            if len(left) == len(waiting):
                continue
            over = [x for x, _ in waiting if all(x is not kept for kept, _ in left)]
            if left:
                self._open[request_id] = left
            else:
                del self._open[request_id]
            for exchange in over:
                self.reaped += 1
                exchange.end(Outcome.UNKNOWN)

    def _is_over(self, exchange: Exchange, since: float, now: float) -> bool:
        endpoint = self._pool.get(exchange.pick.endpoints[0].id)
        if endpoint is None or now - since > MAX_AGE:
            return True
        load = endpoint.load
        if load is None or load.at < since + SEEN_AFTER:
            return False
        return not self.logs_connected or (load.queued == 0 and load.running == 0)


def _end(exchange: Exchange, entry: Entry) -> None:
    if entry.usage is not None:
        exchange.usage = entry.usage
    if entry.response_bytes is not None:
        exchange.response_bytes = entry.response_bytes
    exchange.end(entry.outcome, status=entry.status, served=entry.served)
