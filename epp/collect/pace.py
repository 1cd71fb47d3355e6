"""How often an endpoint is scraped. Pure.

A loaded endpoint is asked often, an idle one seldom, a sleeping one hardly: being asked may keep
it awake. One scrape costs this process about half a millisecond, so that all
endpoints together are limited too: over the limit every interval grows by one factor.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from epp.model import Load

Seconds = Annotated[float, Meta(gt=0)]


class Pace(msgspec.Struct, frozen=True):
    """Bounds. Seconds."""

    fast: Seconds = 0.05  #: between two scrapes of a loaded endpoint
    idle: Seconds = 0.5  #: of an idle one, and of one that does not answer
    asleep: Seconds = 5.0  #: of a sleeping one
    slowest: Seconds = 5.0  #: no limit on all of them together stretches an interval beyond this
    timeout: Seconds = 1.0  #: of one scrape
    stale_after: Seconds = 2.0  #: age at which a load is not known any more
    max_per_second: Seconds = 400.0  #: scrapes of all endpoints together

    def wanted(self, before: float, load: Load | None, in_flight: int) -> float:
        """The interval that suits an endpoint, without the common limit.

        Args:
            before: the last answer of this function for it.
            load: what the scrape said; None if it failed.
            in_flight: requests we have there.
        """
        if load is None:
            return max(self.idle, self.fast)
        if load.asleep:
            return max(self.asleep, self.fast)
        if in_flight or load.queued or load.running:
            return self.fast
        return min(max(before, self.fast) * 2, max(self.idle, self.fast))

    def stretched(self, wanted: float, demand: float) -> float:
        """The interval if all endpoints together want ``demand`` scrapes a second."""
        factor = max(demand / self.max_per_second, 1.0)
        return min(wanted * factor, max(self.slowest, wanted))

    def stale_age(self, interval: float) -> float:
        """Seconds after which a load read at this interval is stale: three misses at least."""
        return max(self.stale_after, 3 * interval)
