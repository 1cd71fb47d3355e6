"""Greedy least uncached work: the endpoint that would have computed this prompt first.

**Source:** the rule that shortest-queue schedulers come down to where a queue is measured in tokens:
``uncached tokens in flight + uncached tokens of this request``. It prices neither the cache that a
choice destroys nor copies, so it duplicates prefixes near saturation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from epp.model import Endpoint, InferenceRequest
from epp.sim.baselines.choosing import Choosing


class GreedyWork(Choosing):
    """The least sum."""

    type: ClassVar[str] = "sim-greedy-work"

    def choose(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> int:
        """See `Choosing.choose`."""
        return self.least(
            [request.uncached_tokens(each.id) + self.tokens(each) for each in endpoints]
        )
