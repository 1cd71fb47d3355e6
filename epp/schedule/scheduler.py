"""From a request and a snapshot of the pool to a pick."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from epp.headers import PREFER
from epp.model import Endpoint, InferenceRequest, Pick
from epp.plugin import Forecaster, ProfileHandler, ProfileResult, Witness
from epp.schedule.available import require_cached
from epp.schedule.profile import Profile


class Candidates:
    """The profiles, bound to one request's candidates (see `plugin.Profiles`)."""

    __slots__ = ("_endpoints", "_profiles", "names", "results")

    def __init__(self, profiles: Mapping[str, Profile], endpoints: Sequence[Endpoint]) -> None:
        self.names: Sequence[str] = tuple(profiles)
        self._profiles = profiles
        self._endpoints = endpoints
        self.results: dict[str, ProfileResult] = {}  #: of the last run of each profile

    def run(self, name: str, request: InferenceRequest) -> ProfileResult:
        """See `plugin.Profiles.run`."""
        result = self._profiles[name].run(request, self._endpoints)
        self.results[name] = result
        return result

    def scores(self, name: str) -> Mapping[str, float] | None:
        """What the last run of a profile gave each candidate, by address; None if it never ran."""
        result = self.results.get(name)
        if result is None:
            return None
        pairs = zip(result.candidates, result.scores, strict=True)
        return {endpoint.address: score for endpoint, score in pairs}


class Scheduler(msgspec.Struct, frozen=True):
    """The profiles, and the handler that runs them."""

    profiles: Mapping[str, Profile]
    handler: ProfileHandler
    with_scores: bool = False  #: fill `Pick.scores`, which costs a dict of every candidate
    witness: Witness | None = None  #: told of every decision
    forecaster: Forecaster | None = None  #: fills `Pick.expected`

    def pick(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> Pick:
        """Choose where ``request`` goes; ``endpoints`` is not empty.

        Raises:
            Saturated: a profile that the handler needs filtered every endpoint out.
            NoKvCache: the client prefers a cached prompt, and the endpoint holds nothing of it.
        """
        candidates = Candidates(self.profiles, endpoints)
        pick = self.handler.handle(request, candidates)
        if PREFER in request.headers:
            require_cached(request, pick)
        if self.with_scores and pick.scores is None:
            pick = msgspec.structs.replace(pick, scores=candidates.scores(pick.profile))
        if self.forecaster is not None:
            expected = self.forecaster.expect(request, pick)
            if expected is not None:
                pick = msgspec.structs.replace(pick, expected=expected)
        if self.witness is not None:
            self.witness.decided(request, pick, candidates.results)
        return pick
