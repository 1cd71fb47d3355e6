"""One scheduling profile: filter, score, pick.

Hot path: runs once or twice per request over every endpoint of the pool. Budget, with the
default scorers: 25 us for 3 endpoints, 1 ms for 256.
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
    scorers: tuple[tuple[Scorer, float], ...]  #: with their weights; 0 switches a scorer off
    picker: Picker

    def run(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> ProfileResult:
        """Choose among ``endpoints``, best first.

        Raises:
            Saturated: the filters left nothing.
        """
        kept = [endpoints]
        for filter_ in self.filters:
            endpoints = filter_.filter(request, endpoints)
            kept.append(endpoints)
        if not endpoints:
            raise Saturated("no endpoints available for the given request")
        totals = [0.0] * len(endpoints)
        parts: list[Sequence[float]] = []
        for scorer, weight in self.scorers:
            scores = scorer.score(request, endpoints) if weight else ()
            parts.append(scores)
            _add(totals, scores, weight)
        chosen = self.picker.pick(endpoints, totals)
        return ProfileResult(
            tuple(chosen), tuple(endpoints), totals, self.filters, kept, self.scorers, parts
        )


def _add(totals: list[float], scores: Sequence[float], weight: float) -> None:
    """Add weighted scores, held to [0, 1]; not a number counts as 0."""
    for i, score in enumerate(scores):
        if score > 0.0:
            totals[i] += weight * score if score < 1.0 else weight
