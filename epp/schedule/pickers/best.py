"""``max-score-picker``: the best score wins; ties are broken at random."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

from msgspec import Meta

from epp import plugin
from epp.model import Endpoint


class MaxScorePicker:
    """Picks the endpoints of the highest scores, best first."""

    type: ClassVar[str] = "max-score-picker"
    stability: ClassVar[plugin.Stability] = "stable"

    class Params(plugin.Params, frozen=True):
        max_num_of_endpoints: Annotated[int, Meta(ge=1)] = 1
        """More than one adds fallbacks, in order."""

    def __init__(self, params: Params, tools: plugin.Tools) -> None:
        self._wanted = params.max_num_of_endpoints
        self._random = tools.random

    def pick(self, endpoints: Sequence[Endpoint], scores: Sequence[float]) -> list[Endpoint]:
        """See `plugin.Picker.pick`. O(n) for one, O(n log n) for more."""
        if self._wanted == 1:
            best = max(scores)
            winners = [i for i, score in enumerate(scores) if score == best]
            return [endpoints[winners[0] if len(winners) == 1 else self._random.choice(winners)]]
        draw = self._random.random
        keys = [(-score, draw()) for score in scores]
        order = sorted(range(len(endpoints)), key=keys.__getitem__)
        return [endpoints[i] for i in order[: self._wanted]]
