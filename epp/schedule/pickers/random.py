"""Pickers by chance: ``random-picker`` and ``weighted-random-picker``.

**Source:** weighted sampling without replacement is A-Res of Efraimidis and Spirakis, "Weighted
random sampling with a reservoir" (2006): the largest keys ``U ** (1 / score)`` win.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, ClassVar

from msgspec import Meta

from epp import plugin
from epp.model import Endpoint


class RandomPicker:
    """Picks endpoints uniformly, whatever their scores."""

    type: ClassVar[str] = "random-picker"
    stability: ClassVar[plugin.Stability] = "beta"

    class Params(plugin.Params, frozen=True):
        max_num_of_endpoints: Annotated[int, Meta(ge=1)] = 1
        """More than one adds fallbacks, in order."""

    def __init__(self, params: Params, tools: plugin.Tools) -> None:
        self._wanted = params.max_num_of_endpoints
        self._random = tools.random

    def pick(self, endpoints: Sequence[Endpoint], scores: Sequence[float]) -> list[Endpoint]:
        """See `plugin.Picker.pick`."""
        return self._random.sample(endpoints, min(self._wanted, len(endpoints)))


class WeightedRandomPicker:
    """Picks endpoints with a chance in proportion to their scores; uniformly if all are 0.

    An endpoint that scores 0 comes after all that score more.
    """

    type: ClassVar[str] = "weighted-random-picker"
    stability: ClassVar[plugin.Stability] = "beta"

    class Params(plugin.Params, frozen=True):
        max_num_of_endpoints: Annotated[int, Meta(ge=1)] = 1
        """More than one adds fallbacks, in order."""

    def __init__(self, params: Params, tools: plugin.Tools) -> None:
        self._wanted = params.max_num_of_endpoints
        self._random = tools.random

    def pick(self, endpoints: Sequence[Endpoint], scores: Sequence[float]) -> list[Endpoint]:
        """See `plugin.Picker.pick`. O(n), and O(n log n) for more than one."""
        draw = self._random.random
        # Logarithms of the keys keep their order and do not underflow for small scores.
        keys = [
            (True, math.log(1.0 - draw()) / score) if score > 0 else (False, draw())
            for score in scores
        ]
        if self._wanted == 1:
            return [endpoints[max(range(len(keys)), key=keys.__getitem__)]]
        order = sorted(range(len(keys)), key=keys.__getitem__, reverse=True)
        return [endpoints[i] for i in order[: self._wanted]]
