"""``single-profile-handler``: one profile decides."""

from __future__ import annotations

from typing import ClassVar

from epp import plugin
from epp.model import InferenceRequest, Pick


class SingleProfileHandler:
    """Runs the only configured profile. More than one is an error of the configuration."""

    type: ClassVar[str] = "single-profile-handler"
    stability: ClassVar[plugin.Stability] = "stable"

    class Params(plugin.Params, frozen=True):
        """No parameters."""

    def __init__(self, params: Params, tools: plugin.Tools) -> None:
        del params, tools

    def handle(self, request: InferenceRequest, profiles: plugin.Profiles) -> Pick:
        """See `plugin.ProfileHandler.handle`.

        Raises:
            errors.Saturated: the profile's filters left nothing.
        """
        name = profiles.names[0]
        return Pick(endpoints=profiles.run(name, request).chosen, profile=name)
