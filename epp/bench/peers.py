"""Telling other pickers of requests, and hearing of theirs: what one request costs either.

And of an entry of the access log that came to a picker that did not pick.

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
from epp.exchange import Exchange
from epp.feedback.entry import Entry
from epp.feedback.unseen import RUN, Unseen
from epp.ledger import Ledger
from epp.model import Ending, Endpoint, EndpointId, InferenceRequest, Outcome, Pick, Usage
from epp.peers import wire
from epp.peers.entries import Entries
from epp.peers.follower import Follower
from epp.peers.hearing import Hearing
from epp.peers.news import Batch, Logged
from epp.peers.telling import Telling
from epp.pipeline import Pipeline
from epp.pool import Pool
from epp.router import Router
from epp.ttft.forecast import Forecaster

ENDPOINTS = 100
PROMPT_TOKENS = 8192
BATCH = 16  #: requests that begin and end in it: what 640 a second have done in 25 ms
LEAST = 50  #: batches
ENTRIES = 50  #: in a batch: 2,000 a second
OTHER = "b" * RUN  #: the picker whose requests the entries are of
ENDPOINT = Endpoint(EndpointId("10.0.0.1:8000"), "10.0.0.1", 8000, "engine")


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


def tell_entry(seconds: float) -> Cost:
    """Time an entry that is found to be another picker's and put into a message."""
    return _entry_cost(seconds, hears=False)


def hear_entry(seconds: float) -> Cost:
    """Time one that is read and ends its exchange."""
    return _entry_cost(seconds, hears=True)


def _entry_cost(seconds: float, *, hears: bool) -> Cost:
    here, there, ledger, clock = Entries("a" * RUN), Entries(OTHER), Ledger(), SystemClock()
    unseen = Unseen(Pool(), clock, forward=here.tell)
    follower = Follower(None, OTHER, ())  # type: ignore[arg-type]  # it is not sent to
    here.join(follower)
    spent, batches = 0.0, 0
    while spent < seconds or batches < LEAST:
        theirs = Unseen(Pool(), clock, run=OTHER)
        there.attach(theirs)
        exchanges = [_open(ledger, clock, theirs) for _ in range(ENTRIES)]
        entries = [_entry(each.name) for each in exchanges]
        began = time.process_time()
        for entry in entries:
            unseen.entry(entry)
        batch = Batch(1.0, tuple(map(Logged, follower.entries)))
        follower.entries.clear()
        messages = list(wire.pack("bench", batch))
        if hears:
            began = time.process_time()
            for data in messages:
                for events in wire.unpack(data).slices():
                    there.take(event for event in events if isinstance(event, Logged))
        spent += time.process_time() - began
        batches += 1
        if hears and len(theirs):
            raise RuntimeError("an entry ended nothing")
        for each in exchanges:
            each.end(Outcome.COMPLETED)
    count = batches * ENTRIES
    return Cost(spent / count * 1000, count / spent, count)


def _open(ledger: Ledger, clock: SystemClock, unseen: Unseen) -> Exchange:
    request = InferenceRequest("r", {}, b"", prompt_tokens=900)
    booked = ledger.reserve(ENDPOINT, 900)
    exchange = Exchange(
        request, Pick((ENDPOINT,)), (), (booked,), clock=clock,
        on_error=lambda _observer, error: (_ for _ in ()).throw(error),
    )  # fmt: skip
    unseen.name(exchange)
    unseen.adopt(exchange)
    return exchange


def _entry(name: str) -> Entry:
    return Entry(
        request_id="", name=name, outcome=Outcome.COMPLETED, status=200,
        served=ENDPOINT.address, response_bytes=20_000, usage=Usage(900, 100, 640),
        first_byte_seconds=0.1, seconds=2.5, streamed=True, attempts=1,
    )  # fmt: skip
