"""Deciders: whether a stage of a request runs on another endpoint.

**Source:** the published rules of llm-d's deciders of these names.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from msgspec import Meta

from epp import plugin
from epp.model import Endpoint, InferenceRequest


class PrefixBasedPdDecider:
    """Yes, if enough of the prompt is not cached on the decode endpoint.

    ``promptTokens <= prompt`` and ``nonCachedTokens <= prompt - cached``; 0 ``nonCachedTokens``
    says never. If no producer says what is cached, nothing is.
    """

    type: ClassVar[str] = "prefix-based-pd-decider"
    stability: ClassVar[plugin.Stability] = "beta"

    class Params(plugin.Params, frozen=True):
        non_cached_tokens: Annotated[int, Meta(ge=0)] = 0  #: least uncached tokens; 0 never
        prompt_tokens: Annotated[int, Meta(ge=0)] = 0  #: least tokens of the whole prompt
        prefix_match_info_producer_name: str = ""  #: whose match counts; "" for the first one

    def __init__(self, params: Params, tools: plugin.Tools) -> None:
        self._params = params

    def disaggregate(self, request: InferenceRequest, decode: Endpoint) -> bool:
        """See `plugin.Decider.disaggregate`."""
        params = self._params
        if not params.non_cached_tokens or request.prompt_tokens < params.prompt_tokens:
            return False
        uncached = request.uncached_tokens(decode.id, params.prefix_match_info_producer_name)
        return uncached >= params.non_cached_tokens


class AlwaysDisaggPdDecider:
    """Always yes."""

    type: ClassVar[str] = "always-disagg-pd-decider"
    stability: ClassVar[plugin.Stability] = "beta"

    class Params(plugin.Params, frozen=True):
        """No parameters."""

    def __init__(self, params: Params, tools: plugin.Tools) -> None:
        del params, tools

    def disaggregate(self, request: InferenceRequest, decode: Endpoint) -> bool:
        """See `plugin.Decider.disaggregate`."""
        return True


class AlwaysDisaggMultimodalDecider:
    """Yes, if the request carries images, audio or video."""

    type: ClassVar[str] = "always-disagg-multimodal-decider"
    stability: ClassVar[plugin.Stability] = "beta"

    class Params(plugin.Params, frozen=True):
        """No parameters."""

    def __init__(self, params: Params, tools: plugin.Tools) -> None:
        del params, tools

    def disaggregate(self, request: InferenceRequest, decode: Endpoint) -> bool:
        """See `plugin.Decider.disaggregate`."""
        return request.multimodal


DECIDERS: tuple[type[Any], ...] = (
    PrefixBasedPdDecider,
    AlwaysDisaggPdDecider,
    AlwaysDisaggMultimodalDecider,
)
