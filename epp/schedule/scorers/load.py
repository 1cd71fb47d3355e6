"""Scorers of load: waiting requests, requests in flight, tokens in flight.

**Source:** the published formulas of llm-d's scorers of these names. Requests and tokens in
flight come from the ledger.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

from msgspec import Meta

from epp import plugin
from epp.ledger import NOTHING
from epp.model import Endpoint, InferenceRequest


class LoadAwareScorer:
    """Scores 0.5 for an empty queue, linear down to 0.0 at ``threshold`` waiting requests.

    Differs from llm-d: there, an endpoint whose queue is not known scores 0.5; here 0.0.
    """

    type: ClassVar[str] = "load-aware-scorer"
    stability: ClassVar[plugin.Stability] = "beta"

    class Params(plugin.Params, frozen=True):
        threshold: Annotated[float, Meta(gt=0)] = 128.0  #: waiting requests

    def __init__(self, params: Params, tools: plugin.Tools) -> None:
        self._threshold = params.threshold

    def score(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> list[float]:
        """See `plugin.Scorer.score`."""
        threshold = self._threshold
        return [
            0.0
            if (load := e.load) is None or (queued := load.queued) is None
            else 0.5 * (1.0 - min(queued, threshold) / threshold)
            for e in endpoints
        ]


class ActiveRequestScorer:
    """Scores 1.0 for idle endpoints and ``(most - c) / most * maxBusyScore`` for busy ones.

    ``c`` is what this picker has in flight there.
    """

    type: ClassVar[str] = "active-request-scorer"
    stability: ClassVar[plugin.Stability] = "beta"

    class Params(plugin.Params, frozen=True):
        idle_threshold: Annotated[int, Meta(ge=0)] = 0  #: requests in flight that are still idle
        max_busy_score: Annotated[float, Meta(ge=0, le=1)] = 1.0  #: a busy one scores less
        request_timeout: str = ""  #: accepted and not used: an exchange always ends
        in_flight_load_producer_name: str = ""  #: accepted; there is one ledger

    def __init__(self, params: Params, tools: plugin.Tools) -> None:
        self._idle = params.idle_threshold
        self._busy = params.max_busy_score
        self._ledger = tools.ledger

    def score(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> list[float]:
        """See `plugin.Scorer.score`."""
        booked, idle = self._ledger.all().get, self._idle
        counts = [booked(endpoint.id, NOTHING).requests for endpoint in endpoints]
        most = max(counts, default=0)
        scale = self._busy / most if most else 0.0
        return [1.0 if count <= idle else (most - count) * scale for count in counts]


class TokenLoadScorer:
    """Scores the uncached prompt tokens in flight, this request's included.

    1.0 for none, linear down to 0.0 at ``queueThresholdTokens``.
    """

    type: ClassVar[str] = "token-load-scorer"
    stability: ClassVar[plugin.Stability] = "beta"

    class Params(plugin.Params, frozen=True):
        queue_threshold_tokens: Annotated[float, Meta(gt=0)] = 4194304.0  #: score 0.0 from here on
        in_flight_load_producer_name: str = ""  #: accepted; there is one ledger
        prefix_match_info_producer_name: str = ""  #: whose match counts; "" for the first one

    def __init__(self, params: Params, tools: plugin.Tools) -> None:
        self._threshold = params.queue_threshold_tokens
        self._producer = params.prefix_match_info_producer_name
        self._ledger = tools.ledger

    def score(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> list[float]:
        """See `plugin.Scorer.score`."""
        booked, threshold, prompt = self._ledger.all().get, self._threshold, request.prompt_tokens
        loads = [booked(e.id, NOTHING).tokens + prompt for e in endpoints]
        match = request.match(self._producer)
        if match is not None and match.held:
            held, size = match.held, match.block_tokens
            for i, endpoint in enumerate(endpoints):
                if blocks := held.get(endpoint.id):
                    loads[i] -= min(blocks * size, prompt)
        return [1.0 - load / threshold if load < threshold else 0.0 for load in loads]
