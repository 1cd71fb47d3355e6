"""How many requests that are open for us an engine no longer has, by what its scrapes count.

A gateway may lose entries of its access log, or have no log while another has one: an engine that is
never idle would then keep those bookings. Its scrapes count what it has, from everybody. If they
count fewer than are open for a while on end, at least the least difference seen is over; which ones
cannot be told. One scrape says little: an entry comes after its request has left the engine.
"""

from __future__ import annotations

import math
from collections.abc import Set as AbstractSet

from epp.model import EndpointId, Load

LOST_SECONDS = 10.0  #: between the first and the last scrape that count too few


class Shortfall:
    """Remembers of each endpoint since when its scrapes count too few, and by how many."""

    def __init__(self) -> None:
        self._short: dict[EndpointId, tuple[float, int]] = {}

    def over(self, endpoint_id: EndpointId, load: Load | None, booked: int) -> int:
        """Return how many of ``booked`` requests are over; then the count begins anew.

        Args:
            endpoint_id: whose.
            load: its last one.
            booked: requests that it must include, if they are not over.
        """
        if load is None or load.queued is None or load.running is None:
            self._short.pop(endpoint_id, None)
            return 0
        short = booked - math.ceil(load.queued + load.running)
        since, least = self._short.get(endpoint_id, (load.at, short))
        least = min(least, short)
        if least > 0 and load.at - since < LOST_SECONDS:
            self._short[endpoint_id] = (since, least)
            return 0
        self._short.pop(endpoint_id, None)
        return max(least, 0)

    def keep(self, endpoint_ids: AbstractSet[EndpointId]) -> None:
        """Forget all other endpoints."""
        for gone in [each for each in self._short if each not in endpoint_ids]:
            del self._short[gone]
