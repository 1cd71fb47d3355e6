"""``in-flight-load-scorer``: prefer the endpoint with the least work that we know of.

Scraped load is as old as the last scrape, and within that time a burst may arrive. This scorer
adds what this picker did since, so a burst spreads at once, and it is linear in requests, so
that a prefix match outweighs a small imbalance and never a large one. Work is counted in
requests:

    seen    = max(own requests in flight, scraped - own ended since + own picked since)
    work    = seen + (uncached tokens in flight there + this request's there) / tokensPerRequest
    score   = 1 - min(1, (work - least work) / fullScaleRequests)

``scraped`` is queued + running. A part that an endpoint did not tell counts as the largest that
any candidate told. The second line says that a long prompt is more work than a short one: a
100,000-token prompt in flight keeps short ones away, and one that is cached somewhere may wait
longer there.

Among equals, the endpoint that was sent the fewest uncached tokens so far comes first, by a
share of the score (``TIE``) too small to outweigh one request or one matched block: cold
prompts, sent one by one to idle endpoints, go round and do not evict one another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

from msgspec import Meta

from epp import plugin
from epp.ledger import NOTHING
from epp.model import Endpoint, InferenceRequest

TIE = 1e-4  #: of the score; with weight 10 a third of one block in 1024 at prefix weight 3


class InFlightScorer:
    """Scores 1.0 for the least work, less by 1 / fullScaleRequests for each request more."""

    type: ClassVar[str] = "in-flight-load-scorer"
    stability: ClassVar[plugin.Stability] = "beta"

    class Params(plugin.Params, frozen=True):
        full_scale_requests: Annotated[float, Meta(gt=0)] = 8.0
        """Requests above the least loaded endpoint at which the score reaches 0."""
        relative: float = 1.0
        tokens_per_request: Annotated[float, Meta(gt=0)] = 8192.0
        """Uncached prompt tokens that are as much work as one request more."""
        prefix_match_info_producer_name: str = ""  #: whose match counts; "" for the first producer

    def __init__(self, params: Params, tools: plugin.Tools) -> None:
        self._full_scale = params.full_scale_requests
        self._relative = params.relative
        self._per_token = 1.0 / params.tokens_per_request
        self._producer = params.prefix_match_info_producer_name
        self._ledger = tools.ledger

    def score(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> list[float]:
        """See `plugin.Scorer.score`. O(len(endpoints))."""
        work, assigned = self._work(endpoints)
        self._spare_cached(work, request, endpoints)
        least = min(work)
        per_request = 1.0 / max(self._full_scale, least * self._relative)
        fewest = min(assigned)
        tie = TIE / ((max(assigned) - fewest) or 1)
        top = 1.0 - TIE
        return [
            max(0.0, 1.0 - (w - least) * per_request) * top + TIE - (a - fewest) * tie
            for w, a in zip(work, assigned, strict=True)
        ]

    def _work(self, endpoints: Sequence[Endpoint]) -> tuple[list[float], list[int]]:
        """Work in requests and uncached tokens ever assigned, by position."""
        most_queued, most_running = _most(endpoints)
        booked = self._ledger.all().get
        follow = self._ledger.follow
        per_token = self._per_token
        work: list[float] = []
        assigned: list[int] = []
        for endpoint in endpoints:
            load = endpoint.load
            counts = booked(endpoint.id, NOTHING)
            if load is None:
                seen = most_queued + most_running + counts.requests
            else:
                if load.at > counts.window and counts is not NOTHING:
                    follow(counts, endpoint)
                queued = most_queued if load.queued is None else load.queued
                running = most_running if load.running is None else load.running
                seen = queued + running + (counts.recent - counts.gone)
                if seen < counts.requests:  # noqa: PLR1730 - max() costs 70 ns an endpoint
                    seen = counts.requests
            work.append(seen + counts.tokens * per_token)
            assigned.append(counts.total_tokens)
        return work, assigned

    def _spare_cached(
        self, work: list[float], request: InferenceRequest, endpoints: Sequence[Endpoint]
    ) -> None:
        """Take off the prompt tokens that an endpoint need not compute.

        Only differences count, so this equals adding each endpoint's uncached tokens.
        """
        match = request.match(self._producer)
        if match is None or not match.held:
            return
        per_block = match.block_tokens * self._per_token
        held = match.held
        for i, endpoint in enumerate(endpoints):
            if blocks := held.get(endpoint.id):
                work[i] -= blocks * per_block


def _most(endpoints: Sequence[Endpoint]) -> tuple[float, float]:
    """The longest queue and the largest batch that any endpoint told; 0 if none did."""
    most_queued = most_running = 0.0
    for endpoint in endpoints:
        if (load := endpoint.load) is not None:
            if load.queued is not None and load.queued > most_queued:
                most_queued = load.queued
            if load.running is not None and load.running > most_running:
                most_running = load.running
    return most_queued, most_running
