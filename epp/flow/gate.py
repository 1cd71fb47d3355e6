"""Decides whether a request may go on now.

Without flow control this is the Go router's legacy admission: only a request of negative
priority can be refused, when the pool is saturated. Everything else queues in the engines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from epp.errors import Saturated
from epp.model import Endpoint, InferenceRequest
from epp.plugin import SaturationDetector


class Gate:
    """Lets requests through; drops sheddable ones (priority < 0) while the pool is saturated."""

    def __init__(self, detector: SaturationDetector) -> None:
        self._detector = detector

    def must_wait(
        self, request: InferenceRequest, endpoints: Callable[[], Sequence[Endpoint]]
    ) -> bool:
        """Return False if the request may go now.

        Args:
            request: who asks.
            endpoints: tells the endpoints the request may use; only called if it matters.

        Raises:
            Saturated: the pool is full and the request may be dropped.
        """
        if request.priority < 0:
            full = self.saturation(endpoints())
            if full >= 1.0:
                raise Saturated(f"the pool is saturated ({full:.2f}) and the request is sheddable")
        return False

    def saturation(self, endpoints: Sequence[Endpoint]) -> float:
        """How full ``endpoints`` are; 1.0 and above is full. See `plugin.SaturationDetector`."""
        return self._detector.saturation(endpoints)

    async def wait(self, request: InferenceRequest) -> None:
        """Return when the request may go on."""
