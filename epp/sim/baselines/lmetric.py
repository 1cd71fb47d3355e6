"""LMetric: the product of prefill work and batch size.

**Source:** "LMetric" (arXiv 2603.15202): ``(new prefill tokens + those in flight) * (requests in
flight + 1)``, the least wins; no weights. The index is of own picks here, or of KV events in
``lmetric-exact``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from epp.model import Endpoint, InferenceRequest
from epp.sim.baselines.choosing import Choosing


class LMetric(Choosing):
    """The least product."""

    type: ClassVar[str] = "sim-lmetric"

    def choose(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> int:
        """See `Choosing.choose`."""
        return self.least(
            [
                (request.uncached_tokens(each.id) + self.tokens(each)) * (self.requests(each) + 1)
                for each in endpoints
            ]
        )
