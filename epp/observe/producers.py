"""A producer of the Go router whose work the core does itself.

It is accepted so that its configurations load. A parameter that would change what the core
does is refused, never ignored.

**Source:** parameters of llm-d's ``inflight-load-producer``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, Any, ClassVar

from msgspec import Meta

from epp import plugin
from epp.model import InferenceRequest


class InflightLoadProducer:
    """What is in flight, by endpoint: the picker itself counts it.

    With ``addEstimatedOutputTokens`` a request also books the tokens that it may generate, and all
    of its tokens until its answer ends instead of until its first byte.
    Differs from llm-d: a reservation counts from the same event-loop turn as the pick, and the
    prefix match that is discounted is always the first producer's.
    """

    type: ClassVar[str] = "inflight-load-producer"
    stability: ClassVar[plugin.Stability] = "beta"

    class Params(plugin.Params, frozen=True):
        add_estimated_output_tokens: bool = False  #: book what may be generated, too
        output_ratio: Annotated[float, Meta(ge=0)] = 1.5
        """Tokens generated per prompt token; never more than the client's own limit."""
        max_estimated_output_tokens: Annotated[int, Meta(ge=0)] = 0  #: of a request; 0: no bound
        prefix_match_info_producer_name: str = ""  #: accepted; the first one counts
        sync_cross_replica_state: bool = True
        """Book what other pickers have under way, too, where pickers tell each other (``--peers``)."""

    def __init__(self, params: Params, tools: plugin.Tools) -> None:
        del tools
        self._params = params
        self.heeds_peers = params.sync_cross_replica_state  #: what they have under way is booked
        self.adds_output = params.add_estimated_output_tokens  #: to what is booked

    def output_tokens(self, request: InferenceRequest) -> int:
        """Tokens that ``request`` may generate."""
        params = self._params
        most = (params.max_estimated_output_tokens or None, request.max_output_tokens)
        estimate = round(request.prompt_tokens * params.output_ratio)
        return min([estimate, *(bound for bound in most if bound is not None)])


def output_tokens(made: Any) -> Callable[[InferenceRequest], int] | None:
    """How to estimate a request's output, if ``made`` is a plugin that was told to."""
    if isinstance(made, InflightLoadProducer) and made.adds_output:
        return made.output_tokens
    return None


def heeds_peers(plugins: Iterable[Any]) -> bool:
    """Whether what other pickers have under way is booked here; not if a plugin says so."""
    return all(each.heeds_peers for each in plugins if isinstance(each, InflightLoadProducer))


PRODUCERS: tuple[type[Any], ...] = (InflightLoadProducer,)
