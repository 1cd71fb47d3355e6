"""``queue-scorer``: prefer the shortest waiting queue.

**Source:** the published formula of llm-d's and GAIE's ``queue-scorer``,
``(max - q) / (max - min)`` over the candidates, 1.0 for all if they are equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from epp import plugin
from epp.model import Endpoint, InferenceRequest


class QueueScorer:
    """Scores 1.0 for the shortest queue, 0.0 for the longest, linear between.

    Equal queues all score 1.0, so the scorer has no say. An endpoint whose queue is not known
    counts as long as the longest known one; if none is known, all score 0.0.
    """

    type: ClassVar[str] = "queue-scorer"
    stability: ClassVar[plugin.Stability] = "stable"

    class Params(plugin.Params, frozen=True):
        """No parameters."""

    def __init__(self, params: Params, tools: plugin.Tools) -> None:
        del params, tools

    def score(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> list[float]:
        """See `plugin.Scorer.score`. O(len(endpoints))."""
        return fewest_first(
            [None if (load := endpoint.load) is None else load.queued for endpoint in endpoints]
        )


def fewest_first(counts: Sequence[float | None]) -> list[float]:
    """Score counts linearly, 1.0 for the least and 0.0 for the most; None counts as the most.

    ``scores[i]`` belongs to ``counts[i]``. All equal gives 1.0 each, all None 0.0 each.
    """
    known = [count for count in counts if count is not None]
    if not known:
        return [0.0] * len(counts)
    least, most = min(known), max(known)
    spread = most - least
    if not spread > 0:
        return [1.0] * len(counts)
    return [0.0 if count is None else (most - count) / spread for count in counts]
