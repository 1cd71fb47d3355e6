"""What the scraper reports, counted and logged."""

from __future__ import annotations

from collections.abc import Callable

from epp.collect.scrape import Reports
from epp.telemetry.metrics import Metrics


class CountedReports(Reports):
    """Counts in `Metrics`; hands warnings to ``warn``."""

    def __init__(self, metrics: Metrics, warn: Callable[[str], None]) -> None:
        self._metrics = metrics
        self._warn = warn

    def scrape_failed(self, reason: str) -> None:
        """See `scrape.Reports.scrape_failed`."""
        self._metrics.scrape_failed(reason)

    def lines_unreadable(self, count: int) -> None:
        """See `scrape.Reports.lines_unreadable`."""
        self._metrics.lines_unreadable(count)

    def warn(self, text: str) -> None:
        """See `scrape.Reports.warn`."""
        self._warn(text)
