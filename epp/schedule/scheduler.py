"""From a request and a snapshot of the pool to a pick."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from epp.model import Endpoint, InferenceRequest, Pick
from epp.plugin import ProfileHandler, ProfileResult
from epp.schedule.profile import Profile


class Candidates:
    """The profiles, bound to one request's candidates (see `plugin.Profiles`)."""

    __slots__ = ("_endpoints", "_profiles", "names")

    def __init__(self, profiles: Mapping[str, Profile], endpoints: Sequence[Endpoint]) -> None:
        self.names: Sequence[str] = tuple(profiles)
        self._profiles = profiles
        self._endpoints = endpoints

    def run(self, name: str, request: InferenceRequest) -> ProfileResult:
        """See `plugin.Profiles.run`."""
        return self._profiles[name].run(request, self._endpoints)


class Scheduler(msgspec.Struct, frozen=True):
    """The profiles, and the handler that runs them."""

    profiles: Mapping[str, Profile]
    handler: ProfileHandler

    def pick(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> Pick:
        """Choose where ``request`` goes; ``endpoints`` is not empty.

        Raises:
            Saturated: a profile that the handler needs filtered every endpoint out.
        """
        return self.handler.handle(request, Candidates(self.profiles, endpoints))
