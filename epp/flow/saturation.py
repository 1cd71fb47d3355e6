"""Saturation detectors: ``utilization-detector`` by scraped load, ``concurrency-detector`` by ours.

Both also serve as filters that drop full endpoints, and keep all rather than none.

**Source:** parameters and formulas of llm-d's detectors of these names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta

from epp import plugin
from epp.model import Endpoint, InferenceRequest, Load

Duration = Annotated[str, Meta(pattern=r"^(0|([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+)$")]


class UtilizationDetector:
    """The mean over endpoints of ``max(queued / 5, KV usage / 0.8)``; not held below 1.

    An endpoint that tells neither counts as full, and so does an empty pool.
    Differs from llm-d: whether a scrape is stale is decided where it is made, which knows each
    endpoint's interval, so ``metricsStalenessThreshold`` is accepted and not used. There, its
    200 ms against a scrape each 50 ms make a short hiccup look like a full pool.
    """

    type: ClassVar[str] = "utilization-detector"
    stability: ClassVar[plugin.Stability] = "beta"

    class Params(plugin.Params, frozen=True):
        queue_depth_threshold: Annotated[float, Meta(gt=0)] = 5.0  #: waiting requests
        kv_cache_util_threshold: Annotated[float, Meta(gt=0, le=1)] = 0.8  #: fraction
        metrics_staleness_threshold: Duration = "200ms"  #: accepted and not used
        headroom: Annotated[float, Meta(ge=0)] = 0.0  #: as a filter, above 1.0 allowed
        staleness_policy: Literal["saturated", "ignore"] = "saturated"
        """What an endpoint of unknown load is; ignored ones are left out of the mean."""

    def __init__(self, params: Params, tools: plugin.Tools) -> None:
        self._per_queued = 1.0 / params.queue_depth_threshold
        self._per_usage = 1.0 / params.kv_cache_util_threshold
        self._limit = 1.0 + params.headroom
        self._ignore = params.staleness_policy == "ignore"

    def saturation(self, endpoints: Sequence[Endpoint]) -> float:
        """See `plugin.SaturationDetector.saturation`."""
        told = [self._fullness(endpoint.load) for endpoint in endpoints]
        if self._ignore:
            known = [fullness for fullness in told if fullness is not None]
        else:
            known = [1.0 if fullness is None else fullness for fullness in told]
        return sum(known) / len(known) if known else 1.0

    def filter(
        self, request: InferenceRequest, endpoints: Sequence[Endpoint]
    ) -> Sequence[Endpoint]:
        """See `plugin.Filter.filter`."""
        unknown = 0.0 if self._ignore else self._limit
        limit = self._limit
        kept = []
        for endpoint in endpoints:
            fullness = self._fullness(endpoint.load)
            if (unknown if fullness is None else fullness) < limit:
                kept.append(endpoint)
        return kept or endpoints

    def _fullness(self, load: Load | None) -> float | None:
        """1.0 is full; None if neither figure is told."""
        if load is None:
            return None
        if load.queued is None:
            return None if load.kv_usage is None else load.kv_usage * self._per_usage
        if load.kv_usage is None:
            return load.queued * self._per_queued
        return max(load.queued * self._per_queued, load.kv_usage * self._per_usage)


class ConcurrencyDetector:
    """What this picker has in flight against a limit per endpoint: never stale.

    ``requests``: requests / (n * maxConcurrency). ``tokens``: uncached prompt tokens /
    (n * maxTokenConcurrency). ``hybrid``: the mean over endpoints of the larger of the two.
    An empty pool is full.
    """

    type: ClassVar[str] = "concurrency-detector"
    stability: ClassVar[plugin.Stability] = "beta"

    class Params(plugin.Params, frozen=True):
        concurrency_mode: Literal["requests", "tokens", "hybrid"] = "requests"  #: what is counted
        max_concurrency: Annotated[int, Meta(gt=0)] = 100  #: requests per endpoint
        max_token_concurrency: Annotated[int, Meta(gt=0)] = 1_000_000  #: tokens per endpoint
        headroom: Annotated[float, Meta(ge=0)] = 0.0  #: as a filter, above 1.0 allowed
        in_flight_load_producer_name: str = ""  #: accepted; there is one ledger

    def __init__(self, params: Params, tools: plugin.Tools) -> None:
        self._mode = params.concurrency_mode
        self._per_request = 1.0 / params.max_concurrency
        self._per_token = 1.0 / params.max_token_concurrency
        self._limit = 1.0 + params.headroom
        self._ledger = tools.ledger

    def saturation(self, endpoints: Sequence[Endpoint]) -> float:
        """See `plugin.SaturationDetector.saturation`."""
        if not endpoints:
            return 1.0
        return sum(self._fullness(endpoints)) / len(endpoints)

    def filter(
        self, request: InferenceRequest, endpoints: Sequence[Endpoint]
    ) -> Sequence[Endpoint]:
        """See `plugin.Filter.filter`."""
        fullness, limit = self._fullness(endpoints), self._limit
        kept = [e for e, full in zip(endpoints, fullness, strict=True) if full < limit]
        return kept or endpoints

    def _fullness(self, endpoints: Sequence[Endpoint]) -> list[float]:
        get, per_request, per_token = self._ledger.get, self._per_request, self._per_token
        counts = [get(endpoint.id) for endpoint in endpoints]
        if self._mode == "requests":
            return [count.requests * per_request for count in counts]
        if self._mode == "tokens":
            return [count.tokens * per_token for count in counts]
        return [max(c.requests * per_request, c.tokens * per_token) for c in counts]


DETECTORS: tuple[type[Any], ...] = (UtilizationDetector, ConcurrencyDetector)
