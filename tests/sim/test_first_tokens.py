"""How well a time to first token is foreseen, on simulated engines in virtual time.

Two engines, one three times slower than the other, get requests of all sizes at random. Seen:
answers pass through the picker; told: their first byte is known at the end only. Errors are
stated, not golden: what is asserted holds for each of the seeds.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest

from epp.clock import ManualClock
from epp.exchange import Exchange, Told
from epp.ledger import Ledger
from epp.model import Endpoint, EndpointId, Pick
from epp.sim import profiles
from epp.sim.engine import Engine
from epp.sim.model import Config, Finished, Request
from epp.sim.profiles import Timing
from epp.ttft.forecast import Forecaster
from epp.ttft.parts import expected_seconds
from epp.ttft.work import weight
from tests.support import build

SCRAPE_SECONDS = 0.1
OUTPUT, REQUESTS = 32, 600
TIMINGS = {
    "fast": profiles.by_name("llama-3.1-8b-h100").timing(),
    "slow": profiles.by_name("llama-3.1-8b-a100").timing(),
}


class Fleet:
    """Asks every engine at random moments; then the figures are there.

    Args:
        load: share of an engine's time that prefill takes.
        told: the first byte is known at the end of an answer only.
        seed: of everything random.
    """

    def __init__(self, *, load: float, told: bool, seed: int) -> None:
        self.clock = ManualClock()
        self.ledger = Ledger()
        self.forecaster = Forecaster(self.ledger, self.clock)
        self.expected: list[tuple[float, float]] = []  #: expected and measured seconds
        self._random = random.Random(seed)
        self._told = told
        self._engines = {
            name: Engine(Config(timing=timing, kv_blocks=100_000))
            for name, timing in TIMINGS.items()
        }
        self._endpoints: dict[str, Endpoint] = {}
        self._busy: set[str] = set()
        self._open: dict[str, Exchange] = {}
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = itertools.count()
        self._run(load)

    def error(self, share: float) -> float:
        """Seconds between expected and measured, relative to measured; a quantile, second half."""
        late = self.expected[len(self.expected) // 2 :]
        return sorted(abs(one - other) / other for one, other in late)[int(len(late) * share)]

    def bias(self) -> float:
        """Sum of what was expected over the sum of what was measured, of the second half."""
        late = self.expected[len(self.expected) // 2 :]
        return sum(one for one, _ in late) / sum(other for _, other in late)

    def _run(self, load: float) -> None:
        for name, timing in TIMINGS.items():
            self._scrape(name)
            at = 0.0
            for _ in range(REQUESTS):
                tokens = int(min(self._random.lognormvariate(6.5, 1.0), 16_000)) + 1
                at += self._random.expovariate(load / (1100 * _per_token(timing)))
                self._at(at, self._ask, name, tokens)
        while self._events:
            at, _, happens, arguments = heapq.heappop(self._events)
            self.clock.advance(at - self.clock.now())
            happens(*arguments)

    def _at(self, seconds: float, happens: Callable[..., None], *arguments: Any) -> None:
        heapq.heappush(self._events, (seconds, next(self._count), happens, arguments))

    def _scrape(self, name: str) -> None:
        engine, now = self._engines[name], self.clock.now()
        load = build.load(at=now, queued=engine.waiting, running=engine.running)
        self._endpoints[name] = build.endpoint(name, load=load)
        if now < 1.0 or self._open:
            self._at(now + SCRAPE_SECONDS, self._scrape, name)

    def _ask(self, name: str, tokens: int) -> None:
        id_ = str(next(self._count))
        request = build.request(
            id=id_, prompt_tokens=tokens, streaming=True, arrived_at=self.clock.now()
        )
        endpoint = self._endpoints[name]
        expected = self.forecaster.expect(request, Pick((endpoint,)))
        exchange = Exchange(
            request, Pick((endpoint,), expected=expected), (self.forecaster,),
            [self.ledger.reserve(endpoint, tokens, request=id_)], clock=self.clock, on_error=_broken,
        )  # fmt: skip
        self._open[id_] = exchange
        self._engines[name].submit(Request(id_, tokens, OUTPUT), self.clock.now())
        self._step(name)

    def _step(self, name: str) -> None:
        if name not in self._busy:
            seconds = self._engines[name].begin(self.clock.now())
            if seconds is not None:
                self._busy.add(name)
                self._at(self.clock.now() + seconds, self._stepped, name)

    def _stepped(self, name: str) -> None:
        self._busy.discard(name)
        step = self._engines[name].complete(self.clock.now())
        if not self._told:
            for id_ in step.emitted:
                self._open[id_].response_head(200, streamed=True)
                self._open[id_].response_piece(1)
        for story in step.finished:
            self._ended(story)
        self._step(name)

    def _ended(self, story: Finished) -> None:
        exchange = self._open.pop(story.id)
        assert story.first_token_at is not None
        seconds = story.first_token_at - story.arrived_at
        expected = exchange.pick.expected
        if expected is not None and (speed := expected.speed) is not None:
            foreseen = expected_seconds(expected, speed)
            self.expected.append((foreseen, seconds))
        if self._told:
            exchange.told(Told(first_byte_seconds=seconds, streamed=True))
        exchange.complete()


def _per_token(timing: Timing) -> float:
    """Seconds per prefill token, attention within a prompt of 2,000 tokens included."""
    return timing.per_prefill + timing.per_attention * 1000


def _broken(observer: object, error: Exception) -> None:
    raise error


def alone(timing: Timing, tokens: int) -> float:
    """Seconds until the first token of a prompt on an engine without other work."""
    engine = Engine(Config(timing=timing, kv_blocks=100_000))
    engine.submit(Request("one", tokens, 1), 0.0)
    at = 0.0
    while (step := engine.step(at)) is not None:
        at = step.at
    return at


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("told", [False, True], ids=["seen", "told"])
def test_the_time_that_a_prompt_takes_is_learned_of_engines_with_little_to_do(
    told: bool, seed: int
) -> None:
    fleet = Fleet(load=0.05, told=told, seed=seed)
    for name, timing in TIMINGS.items():
        speed = fleet.forecaster.speed(EndpointId(name))
        assert speed is not None
        for tokens in (1000, 2000, 4000, 8000):
            work = tokens * weight(tokens, tokens)
            learned = speed.rest + speed.per_token * work
            assert learned == pytest.approx(alone(timing, tokens), rel=0.2), (name, tokens)
    assert fleet.error(0.5) < 0.12


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("told", [False, True], ids=["seen", "told"])
@pytest.mark.parametrize("load", [0.5, 0.8])
def test_first_tokens_are_foreseen_of_engines_with_a_queue(
    load: float, told: bool, seed: int
) -> None:
    fleet = Fleet(load=load, told=told, seed=seed)
    # Without any queue foreseen half of them are 0.9 off, and their sum is half at a load of 0.8.
    assert fleet.error(0.5) < 0.4
    assert 0.9 < fleet.bias() < 1.15
    assert all(each.requests == each.tokens == 0 for each in fleet.ledger.all().values())
