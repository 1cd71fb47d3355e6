"""One scheduling profile: filter, score, pick.

Hot path: runs once or twice per request over every endpoint of the pool.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from epp.errors import Saturated
from epp.model import Endpoint, InferenceRequest
from epp.plugin import Filter, Picker, ProfileResult, Scorer


class Profile(msgspec.Struct, frozen=True):
    """An ordered set of plugins that turns candidates into a choice."""

    name: str
    filters: tuple[Filter, ...]
    scorers: tuple[tuple[Scorer, float], ...]  #: with their weights
    picker: Picker

    def run(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> ProfileResult:
        """Choose among ``endpoints``, best first.

        Raises:
            Saturated: the filters left nothing.
        """
        for filter_ in self.filters:
            endpoints = filter_.filter(request, endpoints)
        if not endpoints:
            raise Saturated("no endpoints available for the given request")
        totals = [0.0] * len(endpoints)
        for scorer, weight in self.scorers:
            for i, score in enumerate(scorer.score(request, endpoints)):
                totals[i] += weight * min(max(score, 0.0), 1.0)
        chosen = self.picker.pick(endpoints, totals)
        return ProfileResult(tuple(chosen), tuple(endpoints), totals)
