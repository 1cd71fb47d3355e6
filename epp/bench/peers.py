"""Telling other pickers of requests, and hearing of theirs: what one request costs either.

Sockets are left out: a batch is one message to each follower, however many requests it tells of.
"""

from __future__ import annotations

import asyncio
import random
import time

from epp.bench.kv import Cost
from epp.bench.schedule import arrivals_of, pool_of
from epp.build import Parts, configure
from epp.clock import SystemClock
from epp.ledger import Ledger
from epp.model import Ending, InferenceRequest, Outcome, Pick, Usage
from epp.peers import wire
from epp.peers.hearing import Hearing
from epp.peers.telling import Telling
from epp.pipeline import Pipeline
from epp.pool import Pool
from epp.router import Router
from epp.ttft.forecast import Forecaster

ENDPOINTS = 100
PROMPT_TOKENS = 8192
BATCH = 16  #: requests that begin and end in it: what 640 a second have done in 25 ms
LEAST = 50  #: batches


class _Picker:
    """One with the built-in configuration."""

    def __init__(self) -> None:
        draw, clock = random.Random(3), SystemClock()
        self.clock, self.ledger = clock, Ledger()
        self.pool: Pool = pool_of(ENDPOINTS, draw, clock.now())
        self.forecaster = Forecaster(self.ledger, clock)
        parts = Parts(clock=clock, random=draw, ledger=self.ledger, pool=self.pool)
        self.pipeline: Pipeline = configure(None, parts)[1]
        self.router = Router(
            self.pool, self.pipeline, self.ledger, clock=clock,
            on_observer_error=lambda _observer, error: (_ for _ in ()).throw(error),
        )  # fmt: skip
        self.telling = Telling(self.ledger, lambda: self.pipeline, clock)
        self.hearing = Hearing(
            self.pool, self.ledger, self.forecaster, lambda: self.pipeline.plugins, clock
        )

    async def picks(self) -> list[tuple[InferenceRequest, Pick]]:
        """Requests as the router leaves them."""
        found = []
        for arrival in arrivals_of(random.Random(4), PROMPT_TOKENS):
            exchange = await self.router.route(arrival)
            exchange.end(Outcome.COMPLETED)
            found.append((exchange.request, exchange.pick))
        return found

    def note(self, picks: list[tuple[InferenceRequest, Pick]]) -> list[bytes]:
        """Have some picked and over, and tell of it."""
        usage = Usage(PROMPT_TOKENS, 100, PROMPT_TOKENS // 2)
        for request, pick in picks:
            self.telling.picked(request, pick)
        for request, pick in picks:
            ending = Ending(
                Outcome.COMPLETED, at=2.0, picked_at=0.0, first_byte_at=1.0, streamed=True,
                usage=usage,
            )  # fmt: skip
            self.telling.ended(request, pick, ending)
        return list(wire.pack("bench", self.telling.take()))


def tell(seconds: float) -> Cost:
    """Time a request that is noted and put into a message."""
    return _cost(seconds, hears=False)


def hear(seconds: float) -> Cost:
    """Time one that is read, booked, learned from and released."""
    return _cost(seconds, hears=True)


def _cost(seconds: float, *, hears: bool) -> Cost:
    teller, other = _Picker(), _Picker()
    picks = asyncio.run(teller.picks())
    spent, batches = 0.0, 0
    while spent < seconds or batches < LEAST:
        first = batches * BATCH % len(picks)
        began = time.process_time()
        messages = teller.note(picks[first : first + BATCH])
        if hears:
            began = time.process_time()
            for data in messages:
                for events in wire.unpack(data).slices():
                    other.hearing.hear("bench", events, 0.0)
        spent += time.process_time() - began
        batches += 1
    requests = batches * BATCH
    return Cost(spent / requests * 1000, requests / spent, requests)
