"""``expected-ttft-scorer``: scores by the seconds that a request costs on each endpoint.

What is known of the endpoints, their queues and their speeds, is the forecast's (`epp.ttft`), which
learns from every answer; see ``docs/policy.md``. What is learned here is whether a prompt that we
know nobody to hold is found at its owner after all: there are other replicas.

Hot path: a decision among 100 endpoints takes 60 us, among 1,000 0.15 ms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

import numpy as np
from msgspec import Meta

from epp import plugin
from epp.model import Ending, Endpoint, InferenceRequest, Pick, PrefixMatch
from epp.schedule.expected import owner
from epp.schedule.expected.cost import Prices, costs, waits
from epp.ttft.forecast import Forecaster
from epp.ttft.queues import Numbers

AtLeastZero = Annotated[float, Meta(ge=0)]

TIE = 1e-3  #: seconds between the first and the last whom a prompt's hash names, and
SPREAD = 2.0
"""Mean prefills more, if others send all. What they sent is unknown for a scrape and a step or two:
the endpoint that looks best looks so to all of them, who must not all choose it."""
HOPE = 0.25  #: of a prompt at its owner, before any answer told, if others send all
FOLLOW = 0.05  #: of the way that one answer moves the hope
FEW = 16  #: endpoints that hold some of a prompt: an array of so few costs more than a loop
HALF = 1.0  #: seconds more than the best at which an endpoint scores half


class ExpectedTtftScorer:
    """Scores 1.0 for the least expected cost in seconds, 1 / (1 + s) for s seconds more.

    Use it alone: it weighs queue, cache and memory against each other in one unit.
    """

    type: ClassVar[str] = "expected-ttft-scorer"
    stability: ClassVar[plugin.Stability] = "beta"

    class Params(plugin.Params, frozen=True):
        cache_price: AtLeastZero = 0.5
        """What cache that is duplicated or pushed out costs, of the seconds that it takes."""
        crowd_price: AtLeastZero = 4.0
        """What work costs those behind it, of its seconds, for each request that waits."""
        memory_price: AtLeastZero = 4.0
        """What a full KV cache costs, in prefills of a mean request."""
        hope: Annotated[float, Meta(ge=0, le=1)] | None = None
        """Share of an unknown prompt expected at its owner; not given, it is learned."""
        prefix_match_info_producer_name: str = ""  #: whose match counts; "" for the first producer

    def __init__(self, params: Params, tools: plugin.Tools) -> None:
        self._prices = Prices(params.cache_price, params.crowd_price, params.memory_price)
        self._producer = params.prefix_match_info_producer_name
        lent = tools.forecaster
        self._lent = isinstance(lent, Forecaster)
        self._forecaster = (
            lent if isinstance(lent, Forecaster) else Forecaster(tools.ledger, tools.clock)
        )
        self._slots = owner.Slots()
        self._fixed = params.hope
        self._hope: float | None = None  # as answers told
        self._asked: tuple[str, Endpoint | None, float] = ("", None, 0.0)
        self._hoped: dict[int, float] = {}  # by pick: share of the prompt not known to be held

    def score(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> list[float]:
        """See `plugin.Scorer.score`. O(len(endpoints))."""
        if not endpoints:
            return []
        cost = self.seconds(request, endpoints)
        cost -= np.minimum.reduce(cost)
        cost += HALF
        scores: list[float] = (HALF / cost).tolist()
        return scores

    def seconds(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> Numbers:
        """Return what ``request`` costs on each of ``endpoints``, by position."""
        outlook = self._forecaster.outlook(endpoints)
        known, prompt = waits(outlook), float(request.prompt_tokens)
        slots, match = self._slots.of(endpoints, outlook.seen.ids), request.match(self._producer)
        held = self._held(match)
        work = self._work(request, match, held)
        key = owner.fingerprint(request, match, list(held.values()), len(endpoints))
        near = owner.ranks(key, slots, known.per_token)
        place = owner.owner(near, known.queue, known.average + float(np.maximum.reduce(work)))
        self._asked = (request.id, endpoints[place], _share(request, match, endpoints[place]))
        work[place] *= 1.0 - self._hope_for(outlook.share)
        total = costs(known, work, tokens=prompt, mean=outlook.mean, prices=self._prices)
        near *= TIE + SPREAD * (1.0 - outlook.share) * outlook.mean * outlook.every.per_token
        total -= near
        return total

    def picked(self, request: InferenceRequest, pick: Pick) -> None:
        """See `plugin.Observer.picked`."""
        if not self._lent:
            self._forecaster.expect(request, pick)
        asked, first, share = self._asked
        self._asked = ("", None, 0.0)
        if asked == request.id and first is not None and first.id == pick.endpoints[0].id:
            self._hoped[id(pick)] = share

    def ended(self, request: InferenceRequest, pick: Pick, ending: Ending) -> None:
        """See `plugin.Observer.ended`: learn whether the owner held more than was known."""
        if not self._lent:
            self._forecaster.ended(request, pick, ending)
        share = self._hoped.pop(id(pick), 0.0)
        usage = ending.usage
        if not share or usage is None or usage.cached_tokens is None or not usage.prompt_tokens:
            return
        found = usage.cached_tokens / usage.prompt_tokens - (1.0 - share)
        more = min(max(found / share, 0.0), 1.0)
        hope = HOPE if self._hope is None else self._hope
        self._hope = hope + FOLLOW * (more - hope)

    def forget(self, endpoint_id: Any) -> None:
        """See `plugin.PoolWatcher.forget`."""
        if not self._lent:
            self._forecaster.forget(endpoint_id)

    def dump_state(self) -> Mapping[str, Any]:
        """See `plugin.StateDumper.dump_state`."""
        return {"hope": self._hope, "open": len(self._hoped), **self._forecaster.dump_state()}

    def _held(self, match: PrefixMatch | None) -> dict[int, int]:
        """Blocks of the prompt by position of the endpoints that hold some of it."""
        if match is None:
            return {}
        place = self._slots.places.get
        return {
            at: blocks for each, blocks in match.held.items() if (at := place(each)) is not None
        }

    def _work(
        self, request: InferenceRequest, match: PrefixMatch | None, held: dict[int, int]
    ) -> Numbers:
        """Work of the prefill by position, less where some of the prompt is held."""
        prompt, works = float(request.prompt_tokens), self._forecaster.works
        count = len(self._slots.places)
        if not request.computed:
            return np.zeros(count)
        work = np.full(count, works(prompt, prompt))
        if match is not None and len(held) <= FEW:
            size = match.block_tokens
            for place, blocks in held.items():
                work[place] = works(max(prompt - blocks * size, 0.0), prompt)
        elif match is not None:
            tokens = np.array(list(held.values()), np.float64) * match.block_tokens
            work[list(held)] = works(np.maximum(prompt - tokens, 0.0), prompt)
        return work

    def _hope_for(self, ours: float) -> float:
        """Share of an unknown prompt that its owner may hold, as others may have sent it there."""
        if self._fixed is not None:
            return self._fixed
        return HOPE * (1.0 - ours) if self._hope is None else self._hope


def _share(request: InferenceRequest, match: PrefixMatch | None, endpoint: Endpoint) -> float:
    """Share of a prompt that an endpoint is not known to hold."""
    if not request.computed or not request.prompt_tokens:
        return 0.0
    held = 0 if match is None else match.held.get(endpoint.id, 0) * match.block_tokens
    return max(1.0 - held / request.prompt_tokens, 0.0)
