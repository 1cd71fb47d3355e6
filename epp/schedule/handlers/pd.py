"""Deprecated handlers of disaggregated requests, and two types that do nothing any more.

**Source:** parameters of llm-d's ``pd-profile-handler``, ``disagg-headers-handler`` and
``prefill-header-handler``, and the rule of its releases 0.3 to 0.5: prefill elsewhere if
``(1 - hit) * prompt bytes >= threshold``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

from epp import headers, plugin
from epp.model import Endpoint, InferenceRequest, Pick, join_host_port
from epp.schedule.handlers.disagg import decider, disaggregated, elsewhere, says_yes

Port = Annotated[int, Meta(ge=0, le=65535)]
DEFAULT_DECIDER = "prefix-based-pd-decider"


class PdProfileHandler:
    """Picks decode first, then prefill elsewhere if its decider, or ``threshold``, says so.

    With ``primaryPort`` the request goes to that port of the decode pod, and a header tells the
    sidecar there which rank was chosen.
    """

    type: ClassVar[str] = "pd-profile-handler"
    stability: ClassVar[plugin.Stability] = "beta"

    class Params(plugin.Params, frozen=True):
        decode_profile: str = "decode"
        prefill_profile: str = "prefill"
        decider_plugin_name: str | None = None  #: prefix-based-pd-decider unless `threshold` is set
        primary_port: Port = 0  #: 0 for the chosen endpoint's own
        threshold: Annotated[int, Meta(ge=0)] | None = None
        """Uncached bytes of the prompt that are worth a prefill elsewhere; 0 always."""
        prefix_match_info_producer_name: str = ""  #: whose match counts; "" for the first one
        prefix_plugin_type: str = ""  #: accepted and not used, as in llm-d
        prefix_plugin_name: str = ""  #: accepted and not used, as in llm-d
        hash_block_size: int | None = None  #: accepted; the producer's block size counts

    @staticmethod
    def refs(params: Params) -> Sequence[str]:
        """See `plugin.Referring.refs`."""
        name = _decider_name(params)
        return [name] if name else []

    @staticmethod
    def needed_profiles(params: Params) -> Sequence[str]:
        """See `plugin.ProfileRunner.needed_profiles`: without prefill, decode does it all."""
        return [params.decode_profile]

    def __init__(self, params: Params, tools: plugin.Tools) -> None:
        name = _decider_name(params)
        self._params = params
        self._decider: plugin.Decider | None = decider(name, tools)
        if self._decider is None:
            self._decider = _ByBytes(params.threshold or 0, params.prefix_match_info_producer_name)

    def handle(self, request: InferenceRequest, profiles: plugin.Profiles) -> Pick:
        """See `plugin.ProfileHandler.handle`.

        Raises:
            errors.Saturated: no decode endpoint is left.
        """
        params = self._params
        decode = profiles.run(params.decode_profile, request).chosen
        prefill: Sequence[Endpoint] = ()
        if says_yes(self._decider, request, decode[0]):
            prefill = elsewhere(params.prefill_profile, request, profiles, peer=decode[0])
        pick = disaggregated(decode, prefill, (), profile=params.decode_profile)
        return through_primary(pick, params.primary_port) if params.primary_port else pick


def _decider_name(params: PdProfileHandler.Params) -> str:
    if params.decider_plugin_name is not None:
        return params.decider_plugin_name
    return DEFAULT_DECIDER if params.threshold is None else ""


class _ByBytes:
    """The rule of releases 0.3 to 0.5."""

    def __init__(self, threshold: int, producer: str) -> None:
        self._threshold = threshold
        self._producer = producer

    def disaggregate(self, request: InferenceRequest, decode: Endpoint) -> bool:
        """See `plugin.Decider.disaggregate`."""
        match = request.match(self._producer)
        hit = 0.0
        if match is not None and match.blocks:
            hit = min(match.held.get(decode.id, 0) / len(match.blocks), 1.0)
        return (1.0 - hit) * len(request.prompt) >= self._threshold


def through_primary(pick: Pick, port: int) -> Pick:
    """Send the pick to one port of its pods; a header names the endpoint that was chosen."""
    return msgspec.structs.replace(
        pick,
        headers={**pick.headers, headers.DATA_PARALLEL: pick.endpoints[0].address},
        destination_override=",".join(join_host_port(e.host, port) for e in pick.endpoints),
    )


class DisaggHeadersHandler:
    """Accepted and does nothing: the profile handler sets the headers itself."""

    type: ClassVar[str] = "disagg-headers-handler"
    stability: ClassVar[plugin.Stability] = "beta"

    class Params(plugin.Params, frozen=True):
        prefill_profile: str = "prefill"  #: the handler's own names count
        encode_profile: str = "encode"  #: likewise

    def __init__(self, params: Params, tools: plugin.Tools) -> None:
        del params, tools


class PrefillHeaderHandler:
    """Accepted and does nothing: the profile handler sets the headers itself."""

    type: ClassVar[str] = "prefill-header-handler"
    stability: ClassVar[plugin.Stability] = "beta"

    class Params(plugin.Params, frozen=True):
        prefill_profile: str = "prefill"  #: the handler's own names count

    def __init__(self, params: Params, tools: plugin.Tools) -> None:
        del params, tools
