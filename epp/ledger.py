"""What we have sent and not yet seen end: requests and uncached tokens, by endpoint.

The scraped load is as old as the last scrape; the ledger is what we did since. It is written
in the same event-loop turn as the pick, before the next request is scored, so that a burst
spreads at once. Whoever reserves holds a `Reservation` and releases it exactly once, however
the exchange ends; releasing twice, or after the endpoint is gone, changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from epp.model import Endpoint, EndpointId


class InFlight:
    """Counts of one endpoint. Read the fields; only `Ledger` and `Reservation` write them."""

    __slots__ = ("recent", "requests", "tokens", "total_tokens", "window")

    def __init__(self) -> None:
        self.requests = 0  #: picked by us and not yet ended
        self.tokens = 0  #: uncached prompt tokens of those
        self.recent = 0  #: those of `requests` that were picked after the scrape read at `window`
        self.window = -1.0  #: `Load.at` that `recent` counts from
        self.total_tokens = 0  #: uncached prompt tokens ever sent here


NOTHING = InFlight()  #: shared and never written: what an unknown endpoint has in flight


class Reservation:
    """One request's place on one endpoint, until released."""

    __slots__ = ("_counts", "_tokens", "_window")

    def __init__(self, counts: InFlight, tokens: int) -> None:
        self._counts: InFlight | None = counts
        self._tokens = tokens
        self._window = counts.window  #: the scrape it came after; `recent` counts it until the next
        counts.requests += 1
        counts.tokens += tokens
        counts.total_tokens += tokens
        counts.recent += 1

    def release_tokens(self) -> None:
        """The prefill is done: its tokens no longer wait, the request still runs."""
        if self._counts is not None:
            self._counts.tokens -= self._tokens
            self._tokens = 0

    def release(self) -> None:
        """The exchange is over. Calling it again does nothing."""
        counts, self._counts = self._counts, None
        if counts is None:
            return
        counts.requests -= 1
        counts.tokens -= self._tokens
        if self._window == counts.window:
            counts.recent -= 1


class Ledger:
    """`InFlight` by endpoint."""

    def __init__(self) -> None:
        self._counts: dict[EndpointId, InFlight] = {}

    def reserve(self, endpoint: Endpoint, tokens: int) -> Reservation:
        """Book one request of ``tokens`` uncached prompt tokens (>= 0) on ``endpoint``."""
        counts = self._counts.get(endpoint.id)
        if counts is None:
            counts = self._counts[endpoint.id] = InFlight()
            # A newcomer starts level with the least used, or it would take every cold prompt.
            others = [c.total_tokens for c in self._counts.values() if c is not counts]
            counts.total_tokens = min(others, default=0)
        self._follow(counts, endpoint)
        return Reservation(counts, tokens)

    def get(self, endpoint_id: EndpointId) -> InFlight:
        """What is in flight there. O(1)."""
        return self._counts.get(endpoint_id, NOTHING)

    def since_scrape(self, endpoint: Endpoint) -> int:
        """Requests in flight there that its last scrape cannot have seen. O(1)."""
        counts = self._counts.get(endpoint.id)
        if counts is None:
            return 0
        self._follow(counts, endpoint)
        return counts.recent

    def forget(self, endpoint_id: EndpointId) -> None:
        """Drop an endpoint's counts; reservations still open on it release into nothing."""
        self._counts.pop(endpoint_id, None)

    def all(self) -> Mapping[EndpointId, InFlight]:
        """Every endpoint that ever had something in flight and is not forgotten."""
        return self._counts

    @staticmethod
    def _follow(counts: InFlight, endpoint: Endpoint) -> None:
        # A newer scrape has seen all that was picked before it.
        load = endpoint.load
        if load is not None and load.at > counts.window:
            counts.window = load.at
            counts.recent = 0
