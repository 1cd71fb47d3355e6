"""``utilization-filter``: drop endpoints above any of several caps.

**Source:** parameters of llm-d's ``utilization-filter``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta

from epp import plugin
from epp.model import Endpoint, InferenceRequest

Metric = Literal["active-requests", "running-requests", "waiting-queue", "kv-cache-utilization"]


class Condition(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """One cap. ``kv-cache-utilization`` is a fraction, the rest are requests."""

    metric: Metric
    max_value: Annotated[float, Meta(ge=0)]  #: requests, or a fraction of the KV cache


class UtilizationFilter:
    """Keeps endpoints at or below every cap; ``active-requests`` is our own count in flight.

    An endpoint that does not tell a capped figure counts as above the cap, unless no candidate
    tells it: then the cap cannot be judged and is left out.
    Differs from llm-d: there, an endpoint never scraped counts as idle and passes.
    """

    type: ClassVar[str] = "utilization-filter"
    stability: ClassVar[plugin.Stability] = "alpha"

    class Params(plugin.Params, frozen=True):
        conditions: Annotated[tuple[Condition, ...], Meta(min_length=1)]
        fallback_on_empty: bool = False  #: keep all rather than none
        in_flight_load_producer_name: str = ""  #: accepted; there is one ledger

    def __init__(self, params: Params, tools: plugin.Tools) -> None:
        self._conditions = params.conditions
        self._fallback = params.fallback_on_empty
        self._ledger = tools.ledger

    def filter(
        self, request: InferenceRequest, endpoints: Sequence[Endpoint]
    ) -> Sequence[Endpoint]:
        """See `plugin.Filter.filter`."""
        fits = [True] * len(endpoints)
        for condition in self._conditions:
            values = self._values(condition.metric, endpoints)
            if any(value is not None for value in values):
                most = condition.max_value
                for i, value in enumerate(values):
                    if value is None or value > most:
                        fits[i] = False
        kept = [endpoint for endpoint, fit in zip(endpoints, fits, strict=True) if fit]
        return kept if kept or not self._fallback else endpoints

    def _values(self, metric: Metric, endpoints: Sequence[Endpoint]) -> list[float | None]:
        if metric == "active-requests":
            get = self._ledger.get
            return [get(endpoint.id).requests for endpoint in endpoints]
        if metric == "running-requests":
            return [load.running if (load := e.load) is not None else None for e in endpoints]
        if metric == "waiting-queue":
            return [load.queued if (load := e.load) is not None else None for e in endpoints]
        return [load.kv_usage if (load := e.load) is not None else None for e in endpoints]
