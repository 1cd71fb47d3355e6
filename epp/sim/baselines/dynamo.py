"""NVIDIA Dynamo's KV router: blocks to prefill plus blocks in use.

**Source:** Dynamo's default cost: ``prefill_load_scale * adjusted prefill blocks + decode blocks``
with adjusted = prefill tokens in flight and incoming, less the overlap, and decode blocks those of
requests in flight; scale 1. With a temperature T > 0 a softmax of costs scaled to their range,
``exp(-cost / (range * T))``, draws the endpoint; T = 0 takes the least.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, ClassVar

from msgspec import Meta

from epp import plugin
from epp.model import Ending, Endpoint, EndpointId, InferenceRequest, Pick
from epp.sim.baselines.choosing import Choosing

BLOCK = 16  #: tokens


class Dynamo(Choosing):
    """The least cost, or a softmax of costs."""

    type: ClassVar[str] = "sim-dynamo"

    class Params(plugin.Params, frozen=True):
        temperature: Annotated[float, Meta(ge=0)] = 0.0  #: 0 always takes the least cost

    def __init__(self, params: Params, tools: plugin.Tools) -> None:
        super().__init__(params, tools)
        self._temperature = params.temperature
        self._active: dict[EndpointId, int] = {}  # prompt tokens of requests in flight

    def choose(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> int:
        """See `Choosing.choose`."""
        costs = [
            (self.tokens(each) + request.uncached_tokens(each.id) + self._active.get(each.id, 0))
            / BLOCK
            for each in endpoints
        ]
        span = max(costs) - min(costs)
        if not self._temperature or not span:
            return self.least(costs)
        least = min(costs)
        weights = [math.exp(-(cost - least) / (span * self._temperature)) for cost in costs]
        return self._random.choices(range(len(costs)), weights)[0]

    def picked(self, request: InferenceRequest, pick: Pick) -> None:
        """See `plugin.Observer.picked`."""
        chosen = pick.endpoints[0].id
        self._active[chosen] = self._active.get(chosen, 0) + request.prompt_tokens

    def ended(self, request: InferenceRequest, pick: Pick, ending: Ending) -> None:
        """See `plugin.Observer.ended`."""
        chosen = pick.endpoints[0].id
        if chosen in self._active:
            self._active[chosen] -= request.prompt_tokens

    def forget(self, endpoint_id: EndpointId) -> None:
        """See `plugin.PoolWatcher.forget`."""
        self._active.pop(endpoint_id, None)
