"""Preble's E2: exploit a long match, explore by recent load otherwise.

**Source:** "Preble: Efficient Distributed Prompt Scheduling for LLM Serving", ICLR 2025: if more of
the prompt is cached than missed, the endpoints with the longest match are exploited; else the least
cost of load in a window of three minutes and of recomputing. In both cases the load decides among
several; exploiting ends where one's load is twice the least. Load is in prompt tokens computed; what
the paper adds for evicting others' prefixes needs hit counts of its own radix tree and is left out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import ClassVar

from epp import plugin
from epp.model import Ending, Endpoint, EndpointId, InferenceRequest, Pick
from epp.sim.baselines.choosing import Choosing, matched

WINDOW_SECONDS = 180.0
EXPLOITED = 0.5  #: of the prompt, cached
BALANCE_TIMES = 2.0
SLACK_TOKENS = 16_384  #: of load that count for nothing in that comparison


class Preble(Choosing):
    """Exploit or explore."""

    type: ClassVar[str] = "sim-preble"

    def __init__(self, params: plugin.Params, tools: plugin.Tools) -> None:
        super().__init__(params, tools)
        self._sent: deque[tuple[float, EndpointId, int]] = deque()
        self._loads: dict[EndpointId, int] = {}

    def choose(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> int:
        """See `Choosing.choose`."""
        self._expire()
        loads = [self._loads.get(each.id, 0) for each in endpoints]
        matches = [matched(request, each) for each in endpoints]
        longest = max(matches)
        if longest > EXPLOITED:
            best = self.least(
                [
                    load if match == longest else float("inf")
                    for load, match in zip(loads, matches, strict=True)
                ]
            )
            if loads[best] <= BALANCE_TIMES * min(loads) + SLACK_TOKENS:
                return best
        return self.least(
            [
                load + request.uncached_tokens(each.id)
                for load, each in zip(loads, endpoints, strict=True)
            ]
        )

    def picked(self, request: InferenceRequest, pick: Pick) -> None:
        """See `plugin.Observer.picked`."""
        chosen = pick.endpoints[0].id
        tokens = request.uncached_tokens(chosen)
        self._sent.append((self._clock.now(), chosen, tokens))
        self._loads[chosen] = self._loads.get(chosen, 0) + tokens

    def ended(self, request: InferenceRequest, pick: Pick, ending: Ending) -> None:
        """See `plugin.Observer.ended`."""

    def _expire(self) -> None:
        sent, before = self._sent, self._clock.now() - WINDOW_SECONDS
        while sent and sent[0][0] < before:
            _, endpoint_id, tokens = sent.popleft()
            self._loads[endpoint_id] -= tokens
