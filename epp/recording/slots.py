"""Numbers for pods that say nothing about them: small, kept while the pod lives, then reused."""

from __future__ import annotations

from heapq import heappop, heappush

from epp.model import EndpointId


class Slots:
    """Gives each endpoint the smallest free number."""

    def __init__(self) -> None:
        self._taken: dict[EndpointId, int] = {}
        self._free: list[int] = []

    def of(self, endpoint_id: EndpointId) -> int:
        """Return its number; it has one from here on."""
        slot = self._taken.get(endpoint_id)
        if slot is None:
            slot = heappop(self._free) if self._free else len(self._taken)
            self._taken[endpoint_id] = slot
        return slot

    def get(self, endpoint_id: EndpointId) -> int | None:
        """Return its number; None if it has none, such as when it is gone."""
        return self._taken.get(endpoint_id)

    def forget(self, endpoint_id: EndpointId) -> None:
        """Free its number."""
        if (slot := self._taken.pop(endpoint_id, None)) is not None:
            heappush(self._free, slot)
