"""What the gateway's access log says about one request, and entries that came too soon."""

from __future__ import annotations

from collections import OrderedDict

import xxhash

from epp.clock import Clock
from epp.exchange import Exchange, Told
from epp.feedback.logged import as_logged
from epp.model import Outcome

MOST = 4096  #: entries kept
SECONDS = 5.0  #: for which they are: a client may use its request id again later
LONGEST_ID = 1024  #: characters of an id that is kept: clients make ids up


class Entry(Told, frozen=True):
    """What the access log says about one request."""

    request_id: str  #: see `logged.as_logged`; "" if there is a name
    outcome: Outcome
    status: int | None = None
    served: str = ""  #: ``host:port`` of the endpoint that answered
    name: str = ""  #: of the exchange, if the gateway took our pick and tells names


def digest(request_id: str) -> int:
    """Return 64 bits that stand for an id as it is logged: ids are the client's."""
    return xxhash.xxh64_intdigest(request_id.encode(errors="surrogatepass"))


def fits(exchange: Exchange, entry: Entry) -> bool:
    """Whether ``entry``, without a name, may be of ``exchange``, which has its id.

    An answer that broke off was shown to us: also an error that the gateway makes itself.
    """
    return not exchange.broken or exchange.status == entry.status


class Early:
    """Entries that nobody waits for yet: one may overtake the end of its own ext_proc stream.

    Of one exchange, or without a name of one request id, the last is kept.
    """

    def __init__(self, clock: Clock) -> None:
        self.unclaimed = 0  #: entries that were dropped, so far
        self._clock = clock
        self._kept: OrderedDict[tuple[str, str], tuple[Entry, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, entry: Entry) -> None:
        """Keep ``entry`` for `SECONDS`."""
        key = (entry.name, "") if entry.name else ("", entry.request_id)
        self.unclaimed += self._kept.pop(key, None) is not None
        if len(key[1]) > LONGEST_ID:
            self.unclaimed += 1
            return
        self._kept[key] = (entry, self._clock.now())
        if len(self._kept) > MOST:
            self._kept.popitem(last=False)
            self.unclaimed += 1

    def take(self, exchange: Exchange) -> Entry | None:
        """Return and forget the entry that tells of ``exchange``, which was not known here before.

        One without a name is of another, earlier exchange, if it came before the pick.
        """
        if not self._kept:
            return None
        if exchange.name and (named := self._kept.pop((exchange.name, ""), None)):
            return named[0]
        key = ("", as_logged(exchange.request.id))
        entry, came_at = self._kept.get(key, (None, 0.0))
        since = max(exchange.picked_at, self._clock.now() - SECONDS)
        if entry is None or came_at < since or not fits(exchange, entry):
            return None
        del self._kept[key]
        return entry

    def drop_old(self) -> None:
        """Drop what was kept for `SECONDS`."""
        until = self._clock.now() - SECONDS
        while self._kept and next(iter(self._kept.values()))[1] < until:
            self._kept.popitem(last=False)
            self.unclaimed += 1
