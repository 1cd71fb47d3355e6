"""SGLang's and vLLM's ``cache_aware``: the longest match while loads are even.

**Source:** vllm-project/router, ``cache_aware`` with its defaults: if the largest load exceeds the
smallest by more than 64 requests and by more than 1.5 times, the least loaded; else the endpoint
with the longest match if more than 0.3 of the prompt is matched; else the smallest tree. Loads are
own requests in flight. A tree's size is the tokens that were new when they were sent there; old
entries are not evicted here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from epp import plugin
from epp.model import Ending, Endpoint, EndpointId, InferenceRequest, Pick
from epp.sim.baselines.choosing import Choosing, matched

MATCHED = 0.3
BALANCE_REQUESTS = 64
BALANCE_TIMES = 1.5


class CacheAware(Choosing):
    """Matches first, unless loads are uneven."""

    type: ClassVar[str] = "sim-cache-aware"

    def __init__(self, params: plugin.Params, tools: plugin.Tools) -> None:
        super().__init__(params, tools)
        self._sizes: dict[EndpointId, int] = {}

    def choose(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> int:
        """See `Choosing.choose`."""
        loads = [self.requests(each) for each in endpoints]
        most, least = max(loads), min(loads)
        if most - least > BALANCE_REQUESTS and most > BALANCE_TIMES * least:
            return self.least(loads)
        matches = [matched(request, each) for each in endpoints]
        if max(matches) > MATCHED:
            return self.least([-each for each in matches])
        return self.least([self._sizes.get(each.id, 0) for each in endpoints])

    def picked(self, request: InferenceRequest, pick: Pick) -> None:
        """See `plugin.Observer.picked`: the tree grows by what was not in it."""
        chosen = pick.endpoints[0].id
        self._sizes[chosen] = self._sizes.get(chosen, 0) + request.uncached_tokens(chosen)

    def ended(self, request: InferenceRequest, pick: Pick, ending: Ending) -> None:
        """See `plugin.Observer.ended`."""

    def forget(self, endpoint_id: EndpointId) -> None:
        """See `plugin.PoolWatcher.forget`."""
        self._sizes.pop(endpoint_id, None)
