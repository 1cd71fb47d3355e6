"""``no-hit-lru-scorer``: send cold prompts to who has gone longest without one.

A prompt that nobody has cached fills one endpoint's cache with a new prefix. Taking turns keeps
the caches even and stops new prefixes from pushing one another out.

**Source:** the published formula of llm-d's ``no-hit-lru-scorer``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Annotated, ClassVar

from msgspec import Meta

from epp import plugin
from epp.model import Ending, Endpoint, EndpointId, InferenceRequest, Pick

COLD = b"\x01"  #: tells other pickers of a cold prompt


class NoHitLruScorer:
    """Scores ``1 - rank / (n - 1)`` for a cold prompt, 0.5 for all once anybody holds a block.

    Ranks begin with the endpoints that never got a cold prompt, in the order given, then the
    others, the longest waiting first.
    Differs from llm-d: ranks count the candidates only, so endpoints that a filter removed do
    not push the rest down to 0.
    """

    type: ClassVar[str] = "no-hit-lru-scorer"
    stability: ClassVar[plugin.Stability] = "beta"

    class Params(plugin.Params, frozen=True):
        lru_size: Annotated[int, Meta(ge=1)] = 1024  #: endpoints remembered
        prefix_match_info_producer_name: str = ""  #: whose match counts; "" for the first one
        prefix_plugin_type: str = ""  #: accepted and not used, as in llm-d
        prefix_plugin_name: str = ""  #: accepted and not used, as in llm-d

    def __init__(self, params: Params, tools: plugin.Tools) -> None:
        self._size = params.lru_size
        self._producer = params.prefix_match_info_producer_name
        self._turns = 0
        self._last: OrderedDict[EndpointId, int] = OrderedDict()  #: turn of the last cold prompt

    def score(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> list[float]:
        """See `plugin.Scorer.score`. O(n log n)."""
        count = len(endpoints)
        if self._warm(request, endpoints):
            return [0.5] * count
        if count <= 1:
            return [1.0] * count
        turn = self._last.get
        turns = [turn(endpoint.id, 0) for endpoint in endpoints]
        scores = [0.0] * count
        for rank, i in enumerate(sorted(range(count), key=turns.__getitem__)):  # a stable sort
            scores[i] = 1.0 - rank / (count - 1)
        return scores

    def picked(self, request: InferenceRequest, pick: Pick) -> None:
        """See `plugin.Observer.picked`."""
        if not self._held(request):
            self._learn(pick.endpoints[0], pick.prefill)

    def ended(self, request: InferenceRequest, pick: Pick, ending: Ending) -> None:
        """See `plugin.Observer.ended`."""

    def share(self, request: InferenceRequest, pick: Pick) -> bytes:
        """See `plugin.Sharer.share`: a cold prompt goes there."""
        return b"" if self._held(request) else COLD

    def heard(self, fact: bytes, endpoint: Endpoint, prefill: Endpoint | None) -> None:
        """See `plugin.Sharer.heard`."""
        if fact != COLD:
            raise ValueError(f"{len(fact)} bytes are no word on a cold prompt")
        self._learn(endpoint, prefill)

    def forget(self, endpoint_id: EndpointId) -> None:
        """See `plugin.PoolWatcher.forget`."""
        self._last.pop(endpoint_id, None)

    def _held(self, request: InferenceRequest) -> bool:
        match = request.match(self._producer)
        return match is not None and any(match.held.values())

    def _learn(self, endpoint: Endpoint, prefill: Endpoint | None) -> None:
        self._use(endpoint.id)
        if prefill is not None:
            self._use(prefill.id)

    def _warm(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> bool:
        match = request.match(self._producer)
        if match is None or not match.held:
            return False
        held = match.held
        return any(held.get(endpoint.id) for endpoint in endpoints)

    def _use(self, endpoint_id: EndpointId) -> None:
        self._turns += 1
        self._last[endpoint_id] = self._turns
        self._last.move_to_end(endpoint_id)
        if len(self._last) > self._size:
            self._last.popitem(last=False)
