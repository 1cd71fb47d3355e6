"""Writes the metrics of requests as they are picked and end."""

from __future__ import annotations

from epp.clock import Clock
from epp.model import Ending, InferenceRequest, Pick
from epp.telemetry.metrics import Metrics


class MetricsObserver:
    """Tells `Metrics` of every exchange. Not a plugin: it is always there."""

    def __init__(self, metrics: Metrics, clock: Clock) -> None:
        self._metrics = metrics
        self._clock = clock

    def picked(self, request: InferenceRequest, pick: Pick) -> None:
        """See `plugin.Observer.picked`."""
        self._metrics.picked(request, pick, now=self._clock.now())

    def ended(self, request: InferenceRequest, pick: Pick, ending: Ending) -> None:
        """See `plugin.Observer.ended`."""
        self._metrics.ended(request, ending)
