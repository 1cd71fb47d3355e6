"""``kv-cache-utilization-scorer``: prefer free KV cache.

**Source:** the published formula of llm-d's and GAIE's ``kv-cache-utilization-scorer``,
``1 - usage``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from epp import plugin
from epp.model import Endpoint, InferenceRequest


class KvCacheUtilizationScorer:
    """Scores the free fraction of each endpoint's KV cache.

    Unknown counts as full as the fullest known one; if none is known, all score 0.0.
    """

    type: ClassVar[str] = "kv-cache-utilization-scorer"
    stability: ClassVar[plugin.Stability] = "stable"

    class Params(plugin.Params, frozen=True):
        """No parameters."""

    def __init__(self, params: Params, tools: plugin.Tools) -> None:
        del params, tools

    def score(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> list[float]:
        """See `plugin.Scorer.score`. O(len(endpoints))."""
        usages = [None if (load := e.load) is None else load.kv_usage for e in endpoints]
        if None not in usages:
            return [1.0 - usage for usage in usages]  # type: ignore[operator]
        fullest = max((usage for usage in usages if usage is not None), default=1.0)
        return [1.0 - (fullest if usage is None else usage) for usage in usages]
