"""What we have sent and not yet seen end: requests and uncached tokens, by endpoint.

The scraped load is as old as the last scrape; the ledger is what we did since. It is written
in the same event-loop turn as the pick, before the next request is scored, so that a burst
spreads at once. Whoever reserves holds a `Reservation` and releases it exactly once, however
the exchange ends; releasing twice, or after the endpoint is gone, changes nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import islice

from epp.model import Endpoint, EndpointId

CATCH_UP_TOKENS = 262_144  #: how far `InFlight.total_tokens` may lag behind the most used


MOVES = 256  #: changes of tokens that are remembered
NOBODY = EndpointId("")


class Moves:
    """On which endpoints tokens changed last, so that readers need not look at all of them."""

    __slots__ = ("count", "last")

    def __init__(self) -> None:
        self.count = 0  #: changes ever
        self.last: deque[EndpointId] = deque(maxlen=MOVES)

    def add(self, endpoint_id: EndpointId) -> None:
        """Tokens changed there."""
        self.count += 1
        self.last.append(endpoint_id)

    def since(self, count: int) -> Sequence[EndpointId] | None:
        """Return where tokens changed since the first ``count`` changes; None if that is forgotten."""
        missed = self.count - count
        if missed > len(self.last) or count < 0:
            return None
        return list(islice(self.last, len(self.last) - missed, None))


class InFlight:
    """Counts of one endpoint. Read the fields; only `Ledger` and `Reservation` write them."""

    __slots__ = (
        "computing", "endpoint_id", "gone", "heard", "heard_tokens", "legs_only", "moves", "recent",
        "recent_tokens", "requests", "tokens", "told", "total_tokens", "window",
    )  # fmt: skip

    def __init__(self, endpoint_id: EndpointId = NOBODY, moves: Moves | None = None) -> None:
        self.endpoint_id = endpoint_id
        self.moves = moves  #: told when `tokens` changes
        self.requests = 0  #: picked by us, or by peers that we hear, and not yet ended
        self.tokens = 0  #: uncached prompt tokens of those
        self.heard = 0  #: those of `requests` that peers picked
        self.heard_tokens = 0  #: uncached prompt tokens of those, part of `tokens`
        self.recent = 0  #: those of `requests` that were picked after the scrape read at `window`
        self.recent_tokens = 0  #: uncached prompt tokens of those, part of `tokens`
        self.gone = 0  #: picked before `window`, ended after it: that scrape still counts them
        self.window = -1.0  #: `Load.at` that `recent` and `gone` count from
        self.total_tokens = 0  #: uncached prompt tokens ever sent here, at least 1 a request
        self.told = False  #: the end of a prefill was told at least once, before its answer's end
        self.legs_only = True  #: nothing is decoded here, as far as we sent it
        self.computing: dict[str, Reservation] = {}  #: by request, while their tokens count

    @property
    def own(self) -> int:
        """Requests that we picked ourselves: those of all pickers add up."""
        return self.requests - self.heard

    @property
    def own_tokens(self) -> int:
        """Uncached prompt tokens of `own`."""
        return self.tokens - self.heard_tokens


NOTHING = InFlight()  #: shared and never written: what an unknown endpoint has in flight


class Reservation:
    """One request's place on one endpoint, until released."""

    __slots__ = ("_counts", "_heard", "_lasting", "_request", "_tokens", "_window")

    def __init__(
        self,
        counts: InFlight,
        tokens: int,
        *,
        lasting: bool = False,
        request: str = "",
        heard: bool = False,
    ) -> None:
        tokens = max(tokens, 0)
        self._heard = heard
        self._request = request
        self._lasting = lasting  #: its tokens stay booked until the exchange is over
        self._counts: InFlight | None = counts
        self._tokens = tokens
        self._window = counts.window  #: the scrape it came after; `recent` counts it until the next
        counts.requests += 1
        counts.tokens += tokens
        counts.total_tokens += tokens or 1
        counts.recent += 1
        counts.recent_tokens += tokens
        if heard:
            counts.heard += 1
            counts.heard_tokens += tokens
        if request and tokens and not lasting:
            counts.computing[request] = self
        if tokens and counts.moves is not None:
            counts.moves.add(counts.endpoint_id)

    def release_tokens(self) -> None:
        """The prefill is done: its tokens no longer wait, the request still runs."""
        if (counts := self._counts) is not None and not self._lasting:
            counts.told = counts.told or self._tokens > 0
            self._drop_tokens(counts)

    def end_leg(self) -> None:
        """The prefill is done, and that was all that it was here for."""
        if self._counts is not None and self._counts.legs_only:
            self._counts.told = True
        self.release()

    def release(self) -> None:
        """The exchange is over. Calling it again does nothing."""
        counts, self._counts = self._counts, None
        if counts is None:
            return
        self._drop_tokens(counts)
        counts.requests -= 1
        counts.heard -= self._heard
        if self._window == counts.window:
            counts.recent -= 1
        else:
            counts.gone += 1

    def _drop_tokens(self, counts: InFlight) -> None:
        if self._tokens and counts.moves is not None:
            counts.moves.add(counts.endpoint_id)
        counts.tokens -= self._tokens
        if self._heard:
            counts.heard_tokens -= self._tokens
        if self._window == counts.window:
            counts.recent_tokens -= self._tokens
        self._tokens = 0
        if counts.computing.get(self._request) is self:
            del counts.computing[self._request]


class Ledger:
    """`InFlight` by endpoint."""

    def __init__(self) -> None:
        self.moves = Moves()  #: of `InFlight.tokens`
        self._counts: dict[EndpointId, InFlight] = {}
        self._most_used = 0  #: largest `total_tokens` of any endpoint, ever

    def reserve(
        self,
        endpoint: Endpoint,
        tokens: int,
        *,
        output: int = 0,
        request: str = "",
        leg: bool = False,
        heard: bool = False,
    ) -> Reservation:
        """Book one request of ``tokens`` uncached prompt tokens (>= 0) on ``endpoint``. O(1).

        With ``output`` tokens that are expected of it, all stay booked until it is over. `computed`
        knows it by ``request``, its id. A ``leg`` is decoded elsewhere. A peer's is ``heard`` of.
        """
        counts = self._counts.get(endpoint.id) or self._add(endpoint.id)
        self.follow(counts, endpoint)
        if counts.legs_only and not leg:
            counts.legs_only = counts.told = False  # ends of legs say nothing of others' prefills
        # One that was away for hours must not get every cold prompt until it has caught up.
        counts.total_tokens = max(counts.total_tokens, self._most_used - CATCH_UP_TOKENS)
        reservation = Reservation(
            counts, tokens + output, lasting=output > 0, request=request, heard=heard
        )
        self._most_used = max(self._most_used, counts.total_tokens)
        return reservation

    def computed(self, endpoint_id: EndpointId, request: str) -> bool:
        """Note that a request's prompt is computed there; say whether its tokens still counted."""
        reservation = self.get(endpoint_id).computing.get(request)
        if reservation is None:
            return False
        reservation.release_tokens()
        return True

    def get(self, endpoint_id: EndpointId) -> InFlight:
        """What is in flight there. O(1)."""
        return self._counts.get(endpoint_id, NOTHING)

    def since_scrape(self, endpoint: Endpoint) -> int:
        """Requests in flight there that its last scrape cannot have seen. O(1)."""
        counts = self._counts.get(endpoint.id)
        if counts is None:
            return 0
        self.follow(counts, endpoint)
        return counts.recent

    def forget(self, endpoint_id: EndpointId) -> None:
        """Drop an endpoint's counts; reservations still open on it release into nothing."""
        self._counts.pop(endpoint_id, None)

    def all(self) -> Mapping[EndpointId, InFlight]:
        """Every endpoint that ever had something in flight and is not forgotten."""
        return self._counts

    @staticmethod
    def follow(counts: InFlight, endpoint: Endpoint) -> None:
        """Start ``counts`` afresh if its endpoint was scraped since: all before has been seen."""
        load = endpoint.load
        if load is not None and load.at > counts.window:
            counts.window = load.at
            counts.recent = counts.recent_tokens = counts.gone = 0

    def _add(self, endpoint_id: EndpointId) -> InFlight:
        # A newcomer starts level with the least used, or it would take every cold prompt.
        counts = InFlight(endpoint_id, self.moves)
        counts.total_tokens = min((c.total_tokens for c in self._counts.values()), default=0)
        self._counts[endpoint_id] = counts
        return counts
