"""SMG's ``least_load``: queued tokens over throughput, and a barrier before the KV cache is full.

**Source:** Shepherd Model Gateway, ``least_load``: ``(queued uncached tokens + tokens sent since the
poll) / throughput + 0.15 * k / (1 - k)`` with k the part of the KV cache in use; priors 1,024 tokens
a request and 2,000 tokens a second. vLLM tells how many requests wait, not their tokens, so the
prior counts for each. It knows nothing of prefixes. Polls are the scenario's scrapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from epp.model import Endpoint, InferenceRequest
from epp.sim.baselines.choosing import Choosing, queued, usage

TOKENS = 1024.0  #: of a waiting request
THROUGHPUT = 2000.0  #: tokens a second
BARRIER_SECONDS = 0.15
FULLEST = 0.999  #: of the cache, where the barrier is as high as it gets


class LeastLoad(Choosing):
    """The least sum."""

    type: ClassVar[str] = "sim-least-load"

    def choose(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> int:
        """See `Choosing.choose`."""
        return self.least([self._seconds(each) for each in endpoints])

    def _seconds(self, endpoint: Endpoint) -> float:
        self._ledger.since_scrape(endpoint)
        sent = self._ledger.get(endpoint.id).recent_tokens
        full = min(usage(endpoint), FULLEST)
        waits = (queued(endpoint) * TOKENS + sent) / THROUGHPUT
        return waits + BARRIER_SECONDS * full / (1 - full)
