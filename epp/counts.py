"""What the ext_proc service and the scraper tell, counted in the metrics."""

from __future__ import annotations

from collections.abc import Callable

from epp.collect.scrape import Reports
from epp.errors import EppError
from epp.extproc.server import Counters
from epp.telemetry.metrics import Metrics


class StreamCounts(Counters):
    """Counts streams in the metrics."""

    def __init__(self, metrics: Metrics) -> None:
        self.stream_started = metrics.stream_started  # type: ignore[method-assign]
        self.stream_ended = metrics.stream_ended  # type: ignore[method-assign]
        self.spurious = metrics.spurious  # type: ignore[method-assign]
        self._metrics = metrics

    def refused(self, error: EppError) -> None:
        """See `Counters.refused`."""
        self._metrics.refused(error)


class ScrapeCounts(Reports):
    """Counts scrapes in the metrics."""

    def __init__(self, metrics: Metrics, warn: Callable[[str], None]) -> None:
        self._metrics = metrics
        self._warn = warn

    def scrape_failed(self, reason: str) -> None:
        """See `Reports.scrape_failed`."""
        self._metrics.scrape_failed(reason)

    def lines_unreadable(self, count: int) -> None:
        """See `Reports.lines_unreadable`."""
        self._metrics.lines_unreadable(count)

    def warn(self, text: str) -> None:
        """See `Reports.warn`."""
        self._warn(text)
