"""What the ext_proc service, the scraper and the pipeline tell, counted in the metrics."""

from __future__ import annotations

from collections.abc import Callable

from epp.collect.scrape import Reports
from epp.errors import EppError
from epp.extproc.needs import Counters
from epp.model import Speed
from epp.pipeline import Pipeline
from epp.pool import Pool
from epp.prefix.approx import ApproxPrefixCacheProducer
from epp.telemetry.metrics import Metrics
from epp.telemetry.store import Labels
from epp.telemetry.table import PREFIX
from epp.ttft.forecast import Forecaster


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


def watch_pipeline(metrics: Metrics, pipeline: Callable[[], Pipeline], pool: Pool) -> None:
    """Write the gauges that the pipeline in use knows, whenever the page is read."""

    def sizes() -> dict[Labels, float]:
        return {
            (name, made.type): float(made.index.blocks)
            for name, made in pipeline().plugins.items()
            if isinstance(made, ApproxPrefixCacheProducer)
        }

    def saturation() -> dict[Labels, float]:
        endpoints = pool.routable()
        if not endpoints:
            return {}  # an empty pool is neither full nor free
        return {(pool.name, "effective"): pipeline().gate.saturation(endpoints)}

    metrics.live(f"{PREFIX}prefix_indexer_size", sizes)
    metrics.live(f"{PREFIX}flow_control_pool_saturation", saturation)


def watch_speeds(metrics: Metrics, forecaster: Forecaster, pool: Pool) -> None:
    """Write what was learned of each endpoint's own answers, whenever the page is read."""

    def told(fact: Callable[[Speed], float]) -> Callable[[], dict[Labels, float]]:
        return lambda: {
            (endpoint.name, endpoint.namespace, str(endpoint.port)): fact(speed)
            for endpoint in pool.snapshot()
            if (speed := forecaster.speed(endpoint.id)) is not None and speed.answers
        }

    metrics.live("epp_learned_prefill_seconds_per_token", told(lambda speed: speed.per_token))
    metrics.live("epp_learned_first_byte_rest_seconds", told(lambda speed: speed.rest))
