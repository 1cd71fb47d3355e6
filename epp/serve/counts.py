"""What the ext_proc service, the scraper and the pipeline tell, counted in the metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

from epp.collect.scrape import Reports
from epp.errors import EppError
from epp.extproc.needs import Counters
from epp.model import Endpoint, Speed
from epp.peers.circle import Circle
from epp.pipeline import Pipeline
from epp.pool import Pool
from epp.prefix.approx import ApproxPrefixCacheProducer
from epp.prefix.feed.engine import Engine
from epp.prefix.media import MmEmbeddingsCacheProducer
from epp.prefix.precise import PrecisePrefixCacheProducer
from epp.prefix.tokens.producer import TokenProducer
from epp.telemetry.gauges import series_name
from epp.telemetry.metrics import Metrics
from epp.telemetry.store import Histogram, Labels
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


ENGINE_COUNTS: Mapping[str, Callable[[Engine], float | None]] = {
    "messages_total": lambda engine: engine.messages,
    "gaps_total": lambda engine: engine.sequence.gaps,
    "lost_messages_total": lambda engine: engine.sequence.lost,
    "replays_total": lambda engine: engine.replays,
    "restarts_total": lambda engine: engine.sequence.restarts,
    "unread_total": lambda engine: engine.unread,
    "unopened_total": lambda engine: engine.unopened,
    "lag_seconds": lambda engine: engine.lag,
}
INDEX_COUNTS = {
    "blocks": "blocks", "bytes": "bytes", "refused_blocks_total": "refused",
    "waiting_events": "waiting_events",
}  # fmt: skip


def watch_events(metrics: Metrics, pipeline: Callable[[], Pipeline], pool: Pool) -> None:
    """Write what is known of engines' KV events and of token ids, whenever the page is read."""
    page = _Events(pipeline, pool)
    metrics.live("epp_kv_trust", page.trust)
    for name, count in ENGINE_COUNTS.items():
        metrics.live(f"epp_kv_{name}", partial(page.of_engines, count))
    for name, figure in INDEX_COUNTS.items():
        metrics.live(f"epp_kv_{name}", partial(page.of_index, figure))
    metrics.live("epp_kv_computed_prompts_total", page.computed)
    metrics.live("epp_kv_requests_total", page.prefixes)
    metrics.live("epp_tokens_requests_total", page.tokens)


def watch_encoders(metrics: Metrics, pipeline: Callable[[], Pipeline], pool: Pool) -> None:
    """Write who was believed to have encoded which media, whenever the page is read."""

    def made() -> list[tuple[Labels, MmEmbeddingsCacheProducer]]:
        every = pipeline().plugins.items()
        return [((m.type, n), m) for n, m in every if isinstance(m, MmEmbeddingsCacheProducer)]

    def queries() -> dict[Labels, float]:
        return {
            (*plugin, modality): float(count)
            for plugin, producer in made()
            for modality, count in producer.counts.queries.items()
        }

    def hits() -> dict[Labels, float]:
        return {
            (*plugin, _pod(endpoint), modality): float(count)
            for plugin, producer in made()
            for modality, counts in producer.counts.hits.items()
            for endpoint_id, count in counts.items()
            if (endpoint := pool.get(endpoint_id)) is not None
        }

    def ratios() -> dict[Labels, Histogram]:
        return {plugin: producer.counts.ratio for plugin, producer in made()}

    metrics.live(f"{PREFIX}encoder_cache_queries_total", queries)
    metrics.live(f"{PREFIX}encoder_cache_hits_total", hits)
    metrics.store.live_histograms(f"{PREFIX}encoder_cache_hit_ratio", ratios)


def _pod(endpoint: Endpoint) -> str:
    name = series_name(endpoint)
    return f"{endpoint.namespace}/{name}" if endpoint.namespace else name


class _Events:
    """Reads the plugins in use."""

    def __init__(self, pipeline: Callable[[], Pipeline], pool: Pool) -> None:
        self._pipeline = pipeline
        self._pool = pool

    def trust(self) -> dict[Labels, float]:
        found: dict[Labels, float] = {}
        for made, engine, labels in self._engines():
            told = made.trust(engine.endpoint_id, engine.rank)
            found[*labels, told.level.value, told.reason] = 1.0
        return found

    def of_engines(self, count: Callable[[Engine], float | None]) -> dict[Labels, float]:
        told = ((labels, count(engine)) for _, engine, labels in self._engines())
        return {labels: float(value) for labels, value in told if value is not None}

    def of_index(self, figure: str) -> dict[Labels, float]:
        return {
            (name, made.type): float(made.index.figures()[figure])
            for name, made in self._producers().items()
        }

    def computed(self) -> dict[Labels, float]:
        return {(n, m.type): float(m.computed_prompts) for n, m in self._producers().items()}

    def prefixes(self) -> dict[Labels, float]:
        return _counted({(name, m.type): m.sources for name, m in self._producers().items()})

    def tokens(self) -> dict[Labels, float]:
        every = self._pipeline().plugins.items()
        return _counted({(n, m.type): m.told for n, m in every if isinstance(m, TokenProducer)})

    def _producers(self) -> dict[str, PrecisePrefixCacheProducer]:
        every = self._pipeline().plugins.items()
        return {name: m for name, m in every if isinstance(m, PrecisePrefixCacheProducer)}

    def _engines(self) -> Iterator[tuple[PrecisePrefixCacheProducer, Engine, Labels]]:
        for made in self._producers().values():
            for engine in made.engines:
                if (endpoint := self._pool.get(engine.endpoint_id)) is not None:
                    port, rank = str(endpoint.port), str(engine.rank)
                    yield made, engine, (endpoint.name, endpoint.namespace, port, rank)


def _counted(
    counts: Mapping[tuple[str, str], Mapping[tuple[str, str], int]],
) -> dict[Labels, float]:
    return {
        (*plugin, *key): float(count)
        for plugin, told in counts.items()
        for key, count in told.items()
    }


def watch_peers(metrics: Metrics, circle: Circle) -> None:
    """Write what other pickers are told and tell, whenever the page is read."""
    hearing, counts, pool = circle.hearing, circle.counts, (circle.name,)
    figures: Mapping[str, Callable[[], float]] = {
        "": lambda: len(circle.followed),
        "_followers": lambda: len(circle.followers),
        "_requests": lambda: len(hearing),
        "_unknown_endpoints_total": lambda: hearing.unknown,
        "_refused_facts_total": lambda: hearing.refused,
        **{f"_{name}_total": partial(getattr, counts, name) for name in counts.__struct_fields__},
    }

    def told(figure: Callable[[], float]) -> dict[Labels, float]:
        return {pool: float(figure())}

    for name, figure in figures.items():
        metrics.live(f"epp_peers{name}", partial(told, figure))

    def lags() -> dict[Labels, float]:
        return {(circle.name, met.address): met.offset.lag for met in circle.followed.values()}

    metrics.live("epp_peers_lag_seconds", lags)


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
