"""``approx-prefix-cache-producer``: what our own picks let us believe about the engines' caches.

The prompt is cut into blocks, each hashed together with all that stands before it; an endpoint
picked for a prompt is believed to hold the prompt's full blocks from then on, as many as its KV
cache has room for, the least recently used gone first. Only prompts are learned, never the
generated text, so a match may be shorter than the truth and is not meant to be longer.
An endpoint that load made us pick against affinity is learned like any other.

**Source:** names and defaults of the parameters are those of llm-d's
``approx-prefix-cache-producer``. Capacity differs: it is the engine's real one in tokens.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from epp import plugin
from epp.model import Ending, Endpoint, EndpointId, InferenceRequest, Pick, PrefixMatch
from epp.prefix import blocks
from epp.prefix.index import PrefixIndex

SMALLEST_TUNED = 64  #: tokens; smaller blocks cost memory and time and gain nothing
LARGEST_TUNED = (
    256  #: tokens; hybrid models report 4096, which would leave most prompts without any
)
SMALLEST = 8  #: tokens; below it the index is larger than what it describes

Positive = Annotated[int, Meta(gt=0)]
AtLeastZero = Annotated[int, Meta(ge=0)]

_log = logging.getLogger(__name__)


class ApproxPrefixCacheProducer:
    """Knows, from our own picks, which endpoint holds how much of a prompt.

    A request without a full block of prompt is left as it is.
    """

    type: ClassVar[str] = "approx-prefix-cache-producer"
    stability: ClassVar[plugin.Stability] = "stable"

    class Params(plugin.Params, frozen=True):
        auto_tune: bool = True  #: follow the engines' block size and capacity where they tell
        block_size_tokens: Positive = 16
        """Tokens per block. With autoTune it gives way to the engines' own, within 64 to 256."""
        max_prefix_tokens_to_match: AtLeastZero = 131_072  #: 0 leaves it to the next one
        max_prefix_blocks_to_match: AtLeastZero = 2048  #: used if the former is 0; 0 is no limit
        lru_capacity_per_server: Positive = 31_250
        """Blocks an endpoint is believed to hold, unless autoTune knows better."""

    def __init__(self, params: Params, tools: plugin.Tools) -> None:
        self._name = tools.name or self.type
        self._params = params
        self._index = PrefixIndex(params.lru_capacity_per_server)
        self._tuned: int | None = None  # the engines' block size, once one told
        if params.block_size_tokens < SMALLEST and not params.auto_tune:
            _log.warning(
                "%s: blockSizeTokens %d raised to %d",
                self._name,
                params.block_size_tokens,
                SMALLEST,
            )

    @property
    def index(self) -> PrefixIndex:
        """What is known; for metrics."""
        return self._index

    def enrich(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> InferenceRequest:
        """Add the prompt's blocks and who holds them. See `plugin.Enricher.enrich`."""
        if not request.prompt:
            return request
        block_tokens = self._block_tokens(endpoints)
        chain = blocks.block_hashes(
            request.prompt,
            root=blocks.root(request.target_model, request.salt),
            block_tokens=block_tokens,
            max_blocks=self._max_blocks(block_tokens),
        )
        if not chain:
            return request
        held = self._index.look_up(chain)
        if held and self._fit(endpoints, held, block_tokens):
            held = self._index.look_up(chain)
        match = PrefixMatch(chain, block_tokens, held)
        return msgspec.structs.replace(request, prefix={**request.prefix, self._name: match})

    def picked(self, request: InferenceRequest, pick: Pick) -> None:
        """See `plugin.Observer.picked`: the endpoint will hold the prompt, and so will the prefill's."""
        match = request.prefix.get(self._name)
        if match is None:
            return
        self._learn(pick.endpoints[0], match)
        if pick.prefill is not None:
            self._learn(pick.prefill, match)

    def ended(self, request: InferenceRequest, pick: Pick, ending: Ending) -> None:
        """See `plugin.Observer.ended`: a fallback that served holds the prompt too."""
        match = request.prefix.get(self._name)
        if match is None or not ending.served or ending.served == pick.endpoints[0].address:
            return
        for endpoint in pick.endpoints[1:]:
            # One that holds nothing may be gone by now, and nobody would forget it again.
            if endpoint.address == ending.served and self._index.held(endpoint.id):
                self._learn(endpoint, match)

    def forget(self, endpoint_id: EndpointId) -> None:
        """See `plugin.PoolWatcher.forget`."""
        self._index.forget(endpoint_id)
        self._tuned = None  # what comes next may be another version, with another block size

    def dump_state(self) -> Mapping[str, Any]:
        """See `plugin.StateDumper.dump_state`."""
        index = self._index
        return {
            "autoTune": self._params.auto_tune,
            "blockTokens": self._block_tokens(()),
            "lruCapacityPerServer": self._params.lru_capacity_per_server,
            "endpoints": index.endpoints,
            "entries": index.entries,
            "blocks": index.blocks,
            "bytes": index.bytes,
        }

    def _learn(self, endpoint: Endpoint, match: PrefixMatch) -> None:
        self._fit((endpoint,), {endpoint.id: 0}, match.block_tokens)
        self._index.learn(endpoint.id, match.blocks)

    def _fit(
        self, endpoints: Iterable[Endpoint], of: Mapping[EndpointId, int], block_tokens: int
    ) -> bool:
        """Give those ``of`` the endpoints the capacity they last told; True if one shrank."""
        if not self._params.auto_tune:
            return False
        shrank = False
        capacity = self._index.capacity
        for endpoint in endpoints:
            load = endpoint.load
            if load is None or (cache := load.cache) is None or cache.tokens is None:
                continue
            if endpoint.id in of:
                told = cache.tokens // block_tokens
                if told != (believed := capacity(endpoint.id)):
                    self._index.set_capacity(endpoint.id, told)
                    shrank |= told < believed
        return shrank

    def _block_tokens(self, endpoints: Sequence[Endpoint]) -> int:
        """Tokens per block: one size for all endpoints, or nothing learned would match."""
        if not self._params.auto_tune:
            return max(self._params.block_size_tokens, SMALLEST)
        if self._tuned is None:
            self._tuned = max(
                (e.load.cache.block_tokens for e in endpoints if e.load and e.load.cache),
                default=None,
            )
        tokens = self._tuned or self._params.block_size_tokens
        return min(max(tokens, SMALLEST_TUNED), LARGEST_TUNED)

    def _max_blocks(self, block_tokens: int) -> int:
        """Blocks matched at most."""
        if self._params.max_prefix_tokens_to_match:
            return max(self._params.max_prefix_tokens_to_match // block_tokens, 1)
        return self._params.max_prefix_blocks_to_match or sys.maxsize
