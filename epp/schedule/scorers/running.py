"""``running-requests-size-scorer``: prefer the smallest running batch.

**Source:** the published formula of llm-d's ``running-requests-size-scorer``, which is that of
``queue-scorer`` on the number of running requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from epp import plugin
from epp.model import Endpoint, InferenceRequest
from epp.schedule.scorers.queue import fewest_first


class RunningRequestsScorer:
    """Scores 1.0 for the fewest running requests, 0.0 for the most, linear between.

    Unknown counts as the most known; if none is known, all score 0.0.
    """

    type: ClassVar[str] = "running-requests-size-scorer"
    stability: ClassVar[plugin.Stability] = "stable"

    class Params(plugin.Params, frozen=True):
        """No parameters."""

    def __init__(self, params: Params, tools: plugin.Tools) -> None:
        del params, tools

    def score(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> list[float]:
        """See `plugin.Scorer.score`. O(len(endpoints))."""
        return fewest_first(
            [None if (load := endpoint.load) is None else load.running for endpoint in endpoints]
        )
