"""``prefix-cache-affinity-filter``: stay where the prompt is cached, until that costs too long.

**Source:** the published rule of llm-d's filter of the same name. With ``matched / total``
blocks of the prompt per endpoint and the time to first token estimated as
``tokens in flight / peakPrefillThroughput``:

    sticky = endpoints with matched / total >= affinityThreshold
    keep sticky unless min(ttft of sticky) - min(ttft of the others) > maxTTFTPenaltyMs
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta

from epp import plugin
from epp.model import Endpoint, InferenceRequest


class PrefixCacheAffinityFilter:
    """Keeps the endpoints that hold most of the prompt, or all if there are none.

    Tokens in flight come from the ledger, so they are never stale. The default throughput was
    measured by llm-d for Qwen 32B on two H100; set your own.

    Differs from llm-d: ``ttftSource: latencyPredictor`` is refused.
    """

    type: ClassVar[str] = "prefix-cache-affinity-filter"
    stability: ClassVar[plugin.Stability] = "beta"

    class Params(plugin.Params, frozen=True):
        affinity_threshold: Annotated[float, Meta(ge=0, le=1)] = 0.80
        """Fraction of the prompt's blocks; 0 switches the filter off."""
        exploration_probability: Annotated[float, Meta(ge=0, le=1)] = 0.0
        """Share of requests that ignore the caches."""
        max_ttft_penalty_ms: Annotated[float, Meta(ge=0)] = msgspec.field(
            default=18000.0, name="maxTTFTPenaltyMs"
        )
        """Milliseconds; 0 stays with the caches at any cost."""
        ttft_source: Literal["prefillThroughput", "latencyPredictor"] = "prefillThroughput"
        """How the time to first token is estimated; latencyPredictor is refused."""
        peak_prefill_throughput: Annotated[float, Meta(gt=0)] = 15928.0  #: tokens per second
        prefix_match_info_producer_name: str = ""  #: whose match counts; "" for the first one
        in_flight_load_producer_name: str = ""  #: accepted; there is one ledger

    def __init__(self, params: Params, tools: plugin.Tools) -> None:
        if params.ttft_source == "latencyPredictor":
            raise ValueError(
                "ttftSource: latencyPredictor needs predicted latencies, which are not supported "
                "yet; use prefillThroughput"
            )
        self._params = params
        self._random = tools.random
        self._ledger = tools.ledger

    def filter(
        self, request: InferenceRequest, endpoints: Sequence[Endpoint]
    ) -> Sequence[Endpoint]:
        """See `plugin.Filter.filter`. O(len(endpoints)); keeps all rather than none."""
        params = self._params
        match = request.match(params.prefix_match_info_producer_name)
        if len(endpoints) <= 1 or params.affinity_threshold <= 0 or match is None:
            return endpoints
        if not match.blocks or not match.held:
            return endpoints
        needed = params.affinity_threshold * len(match.blocks)
        held = match.held
        sticky = [e for e in endpoints if held.get(e.id, 0) >= needed]
        if not sticky or len(sticky) == len(endpoints):
            return endpoints
        if params.exploration_probability > self._random.random():
            return endpoints
        if params.max_ttft_penalty_ms > 0:
            others = [e for e in endpoints if held.get(e.id, 0) < needed]
            penalty = self._least_ttft_ms(sticky) - self._least_ttft_ms(others)
            if penalty > params.max_ttft_penalty_ms:
                return endpoints
        return sticky

    def _least_ttft_ms(self, endpoints: Sequence[Endpoint]) -> float:
        get = self._ledger.get
        tokens = min([get(endpoint.id).tokens for endpoint in endpoints])
        return 1000.0 * tokens / self._params.peak_prefill_throughput
