"""Which prefill endpoints may be asked, and how often another one may be. Pure.

An endpoint that failed rests, twice as long each time in a row. Retries are a share of all
requests, so that a pool that fails altogether is not asked twice as much.
"""

from __future__ import annotations

from collections.abc import Sequence

from epp.model import Endpoint, EndpointId

FIRST_REST = 1.0  #: seconds, after one failure
LONGEST_REST = 30.0  #: seconds
RETRIES = 0.2  #: for each request
MOST_RETRIES = 10.0  #: that are saved up


class Health:
    """What is known of endpoints from prefills that were sent there."""

    def __init__(self) -> None:
        self._failed: dict[EndpointId, tuple[int, float]] = {}  # in a row, and the rest's end
        self._retries = MOST_RETRIES

    def fit(self, endpoints: Sequence[Endpoint], now: float) -> list[Endpoint]:
        """Return those that do not rest at ``now``, in order."""
        return [each for each in endpoints if self._failed.get(each.id, (0, now))[1] <= now]

    def good(self, endpoint_id: EndpointId) -> None:
        """Note a prefill that was done."""
        self._failed.pop(endpoint_id, None)

    def bad(self, endpoint_id: EndpointId, now: float) -> None:
        """Note one that failed by the endpoint's fault."""
        count = self._failed.get(endpoint_id, (0, now))[0] + 1
        rest = min(FIRST_REST * 2.0 ** min(count - 1, 10), LONGEST_REST)
        self._failed[endpoint_id] = count, now + rest

    def forget(self, endpoint_id: EndpointId) -> None:
        """Drop what is known of an endpoint: it is gone, or its process is another one."""
        self._failed.pop(endpoint_id, None)

    def asked(self) -> None:
        """Note a request; it earns a part of a retry."""
        self._retries = min(self._retries + RETRIES, MOST_RETRIES)

    def may_retry(self) -> bool:
        """Take one retry, if there is one left."""
        if self._retries < 1.0:
            return False
        self._retries -= 1.0
        return True

    @property
    def resting(self) -> int:
        """Endpoints whose last prefill failed."""
        return len(self._failed)
