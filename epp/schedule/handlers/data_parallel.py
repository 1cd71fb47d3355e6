"""``data-parallel-profile-handler``: one address per pod, its ranks told by a header. Deprecated.

**Source:** parameters and header of llm-d's handler of the same name.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from epp import plugin
from epp.model import InferenceRequest, Pick
from epp.schedule.handlers.pd import through_primary


class DataParallelProfileHandler:
    """Runs the only profile, then sends the request to ``primaryPort`` of the chosen pod."""

    type: ClassVar[str] = "data-parallel-profile-handler"
    stability: ClassVar[plugin.Stability] = "beta"

    class Params(plugin.Params, frozen=True):
        primary_port: Annotated[int, Meta(ge=1, le=65535)] = 8000  #: where the sidecar listens

    def __init__(self, params: Params, tools: plugin.Tools) -> None:
        self._port = params.primary_port

    def handle(self, request: InferenceRequest, profiles: plugin.Profiles) -> Pick:
        """See `plugin.ProfileHandler.handle`.

        Raises:
            errors.Saturated: the profile's filters left nothing.
        """
        name = profiles.names[0]
        pick = Pick(endpoints=profiles.run(name, request).chosen, profile=name)
        return through_primary(pick, self._port)
