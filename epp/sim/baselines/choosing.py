"""What baselines share: each chooses one endpoint, through the router like any other plugin.

A baseline is a scorer that gives its choice 1.0 and all others 0.0, so that filters, booking, index
and observers are those of production. What a baseline may know is what its original knows: its own
picks, scraped loads, and a prefix index that the configuration names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from epp import plugin
from epp.model import Endpoint, InferenceRequest


class Choosing:
    """Base of baselines."""

    type: ClassVar[str] = ""
    stability: ClassVar[plugin.Stability] = "alpha"

    class Params(plugin.Params, frozen=True):
        """No parameters."""

    def __init__(self, params: plugin.Params, tools: plugin.Tools) -> None:
        self._random = tools.random
        self._ledger = tools.ledger
        self._clock = tools.clock

    def choose(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> int:
        """Return the position of the endpoint that ``request`` goes to."""
        raise NotImplementedError

    def score(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> list[float]:
        """See `plugin.Scorer.score`."""
        scores = [0.0] * len(endpoints)
        if endpoints:
            scores[self.choose(request, endpoints)] = 1.0
        return scores

    def least(self, costs: Sequence[float]) -> int:
        """Return the position of the least cost; ties are broken at random."""
        best = min(costs)
        ties = [i for i, cost in enumerate(costs) if cost == best]
        return ties[0] if len(ties) == 1 else self._random.choice(ties)

    def requests(self, endpoint: Endpoint) -> int:
        """Requests in flight there that this picker sent."""
        return self._ledger.get(endpoint.id).requests

    def tokens(self, endpoint: Endpoint) -> int:
        """Uncached prompt tokens of those."""
        return self._ledger.get(endpoint.id).tokens


def matched(request: InferenceRequest, endpoint: Endpoint) -> float:
    """Return which part of the prompt's blocks ``endpoint`` is believed to hold, 0.0 to 1.0."""
    match = request.match()
    if match is None or not match.blocks:
        return 0.0
    return match.held.get(endpoint.id, 0) / len(match.blocks)


def queued(endpoint: Endpoint) -> float:
    """Requests waiting there at the last scrape; 0 if it did not tell."""
    load = endpoint.load
    return 0.0 if load is None or load.queued is None else load.queued


def usage(endpoint: Endpoint) -> float:
    """Part of the KV cache in use at the last scrape; 0 if it did not tell."""
    load = endpoint.load
    return 0.0 if load is None or load.kv_usage is None else load.kv_usage
