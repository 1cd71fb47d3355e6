"""A router as the default configuration builds it, over a pool that a test describes."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

from epp.clock import ManualClock
from epp.exchange import Exchange
from epp.flow.gate import Gate
from epp.ledger import Ledger
from epp.model import Arrival, Endpoint, InferenceRequest, Load
from epp.pipeline import Pipeline
from epp.plugin import Observer, Tools
from epp.pool import Pool
from epp.prefix.approx import ApproxPrefixCacheProducer
from epp.router import Router
from epp.rules import Rules
from epp.schedule import DEFAULT_WEIGHTS
from epp.schedule.handlers.single import SingleProfileHandler
from epp.schedule.pickers.best import MaxScorePicker
from epp.schedule.profile import Profile
from epp.schedule.scheduler import Scheduler
from epp.schedule.scorers.in_flight import InFlightScorer
from epp.schedule.scorers.kv_usage import KvCacheUtilizationScorer
from epp.schedule.scorers.prefix import PrefixCacheScorer
from epp.schedule.scorers.queue import QueueScorer
from tests.support import build

SCORERS = (QueueScorer, KvCacheUtilizationScorer, PrefixCacheScorer, InFlightScorer)


class BodyIsPrompt:
    """Reads a body as its own prompt, four bytes a token."""

    def parse(self, arrival: Arrival, now: float) -> InferenceRequest:
        return build.request(
            id=arrival.id,
            body=arrival.body,
            prompt=arrival.body,
            prompt_tokens=len(arrival.body) // 4,
            arrived_at=now,
        )


class NeverFull:
    def saturation(self, endpoints: Sequence[Endpoint]) -> float:
        return 0.0


def default_profile(tools: Tools) -> Profile:
    made = {scorer.type: scorer(scorer.Params(), tools) for scorer in SCORERS}
    return Profile(
        name="default",
        filters=(),
        scorers=tuple((made[type_], weight) for type_, weight in DEFAULT_WEIGHTS),
        picker=MaxScorePicker(MaxScorePicker.Params(), tools),
    )


class DefaultPicker:
    """One picker with its own ledger, index and randomness."""

    def __init__(self, *endpoints: Endpoint, seed: int = 0) -> None:
        self.clock = ManualClock()
        self.ledger = Ledger()
        self.pool = Pool()
        for endpoint in endpoints:
            self.pool.put(endpoint)
        tools = Tools(self.clock, random.Random(seed), self.ledger)
        self.prefix = ApproxPrefixCacheProducer(ApproxPrefixCacheProducer.Params(), tools)
        self.pool.on_forget(self.prefix.forget)
        self.pool.on_forget(self.ledger.forget)
        handler = SingleProfileHandler(SingleProfileHandler.Params(), tools)
        pipeline = Pipeline(
            formats=BodyIsPrompt(),
            rules=Rules(rewrite=lambda request, target: request),
            gate=Gate(NeverFull()),
            screeners=(),
            enrichers=(self.prefix,),
            admitters=(),
            scheduler=Scheduler({"default": default_profile(tools)}, handler),
            observers=(self.prefix,),
        )
        self.router = Router(
            self.pool, pipeline, self.ledger, clock=self.clock, on_observer_error=self._broken
        )

    def send(self, body: bytes = b"") -> Exchange:
        """Route one request, which stays in flight until its exchange is completed."""
        step = self.router.route(Arrival("r", {}, body))
        try:
            step.send(None)  # nothing in this pipeline waits
        except StopIteration as done:
            return done.value
        raise AssertionError("routing waited for something")

    def scrape(self, name: str, load: Load | None) -> None:
        self.pool.set_load(build.endpoint(name).id, load)

    @staticmethod
    def _broken(observer: Observer, error: Exception) -> None:
        raise error


def target(exchange: Exchange) -> str:
    return exchange.pick.endpoints[0].name


def spread(exchanges: Sequence[Exchange]) -> Counter[str]:
    """Requests by the name of the endpoint they went to."""
    return Counter(target(exchange) for exchange in exchanges)


def text(tokens: int, seed: int) -> bytes:
    """A prompt of that many tokens, different for every seed from its first block on."""
    return random.Random(seed).randbytes(4 * tokens)
