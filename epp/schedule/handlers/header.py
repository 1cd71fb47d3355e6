"""``header-profile-handler``: the caller names the profile.

**Source:** parameters and rules of llm-d's handler of the same name.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from epp import plugin
from epp.errors import BadRequest
from epp.model import InferenceRequest, Pick


class HeaderProfileHandler:
    """Runs the profile that a header names, ``defaultProfile`` without it.

    A single configured profile always runs.
    Differs from llm-d: an unknown profile answers 400, since the request is wrong and waiting
    cannot help; llm-d answers 429 because its handlers cannot say why they failed.
    """

    type: ClassVar[str] = "header-profile-handler"
    stability: ClassVar[plugin.Stability] = "alpha"

    class Params(plugin.Params, frozen=True):
        header_name: Annotated[str, Meta(min_length=1)] = "EPP-Profile"
        default_profile: str = "decode"  #: runs without the header

    def __init__(self, params: Params, tools: plugin.Tools) -> None:
        self._header = params.header_name.lower()
        self._default = params.default_profile

    def handle(self, request: InferenceRequest, profiles: plugin.Profiles) -> Pick:
        """See `plugin.ProfileHandler.handle`.

        Raises:
            errors.BadRequest: there is no profile of that name.
            errors.Saturated: the profile's filters left nothing.
        """
        if len(profiles.names) == 1:
            name = profiles.names[0]
        else:
            name = request.headers.get(self._header, "").strip() or self._default
        if name not in profiles.names:
            known = ", ".join(profiles.names)
            raise BadRequest(f"{self._header}: no profile {name[:64]!r}; there are: {known}")
        return Pick(endpoints=profiles.run(name, request).chosen, profile=name)
