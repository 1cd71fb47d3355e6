"""``prefix-cache-scorer``: prefer endpoints that already hold the prompt's beginning.

**Source:** the published formula of llm-d's ``prefix-cache-scorer``:
``w * min(1, matched tokens / scale)^2 + (1 - w) * matched blocks / blocks``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

from msgspec import Meta

from epp import plugin
from epp.model import Endpoint, InferenceRequest, PrefixMatch


class PrefixCacheScorer:
    """Scores the matched part of the prompt; nothing known of it scores 0.0."""

    type: ClassVar[str] = "prefix-cache-scorer"
    stability: ClassVar[plugin.Stability] = "stable"

    class Params(plugin.Params, frozen=True):
        prefix_match_info_producer_name: str = ""  #: whose match counts; "" for the first producer
        match_length_weight: Annotated[float, Meta(ge=0, le=1)] = 0.0
        """Share of the score that goes by the match's length instead of its fraction."""
        match_length_scale_tokens: Annotated[int, Meta(gt=0)] = 8192
        """Match, in tokens, from which the length's share is full."""

    def __init__(self, params: Params, tools: plugin.Tools) -> None:
        del tools
        self._producer = params.prefix_match_info_producer_name
        self._weight = params.match_length_weight
        self._scale = params.match_length_scale_tokens

    def score(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> list[float]:
        """See `plugin.Scorer.score`. O(len(endpoints))."""
        match = request.match(self._producer)
        if match is None or not match.blocks or not match.held:
            return [0.0] * len(endpoints)
        # Few endpoints hold anything: their scores first, then a look-up for each candidate.
        worth = {held_by: self._worth(match, blocks) for held_by, blocks in match.held.items()}
        return [worth.get(endpoint.id, 0.0) for endpoint in endpoints]

    def _worth(self, match: PrefixMatch, blocks: int) -> float:
        """What ``blocks`` leading blocks held are worth, 0.0 to 1.0."""
        fraction = min(blocks / len(match.blocks), 1.0)
        if not self._weight:
            return fraction
        length = min(blocks * match.block_tokens / self._scale, 1.0)
        return self._weight * length**2 + (1.0 - self._weight) * fraction
