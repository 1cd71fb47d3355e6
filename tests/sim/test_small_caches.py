"""What the index's correction is worth, on simulated engines in virtual time.

The engines do not tell how much their KV caches hold, and one holds a quarter of what the others
do. Sessions take turns over shared system prompts. Margins, not golden values.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from statistics import fmean
from typing import Any

import msgspec
import numpy as np
import pytest

from epp.exchange import Exchange
from epp.model import CacheInfo, Endpoint, EndpointId, Load, PrefixMatch, Usage
from epp.sim import profiles
from epp.sim.cache import block_hashes
from epp.sim.engine import Engine
from epp.sim.model import Config, Finished, Request
from tests.support import build
from tests.support.default_picker import DefaultPicker, target

BLOCK, SCRAPE_SECONDS = 16, 0.1
SYSTEM, QUESTION, ANSWER, TURNS, THINK_SECONDS = 3000, 400, 64, 5, 4.0
SESSIONS, SESSIONS_PER_SECOND, SYSTEMS = 200, 6.0, 12


class Fleet:
    """Runs all sessions to their end; then the figures are there.

    Args:
        tokens: what the cache of each engine holds.
        told: whether the engines tell it.
        corrects: whether missed predictions count.
        seed: of everything random.
    """

    def __init__(self, tokens: dict[str, int], *, told: bool, corrects: bool, seed: int) -> None:
        self.predicted = self.missed = self.prompt = self.cached = 0
        self.ttfts: list[float] = []
        self._random = random.Random(seed)
        self._tokens, self._told = tokens, told
        config = Config(timing=profiles.by_name(profiles.DEFAULT).timing(), kv_blocks=1)
        self._engines = {
            name: Engine(msgspec.structs.replace(config, kv_blocks=held // BLOCK))
            for name, held in tokens.items()
        }
        self._busy: set[str] = set()
        self._picker = DefaultPicker(*map(self._endpoint, tokens), seed=seed)
        if not corrects:
            self._picker.prefix._is_test = _never  # type: ignore[method-assign]
        self._open: dict[str, tuple[Exchange, bytes, int]] = {}
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = itertools.count()
        self._begin()

    def capacity(self, name: str) -> int:
        """Blocks that the index believes an engine holds."""
        return self._picker.prefix.index.capacity(EndpointId(name))

    def _begin(self) -> None:
        systems = [self._random.randbytes(4 * SYSTEM) for _ in range(SYSTEMS)]
        starts = 0.0
        for _ in range(SESSIONS):
            starts += self._random.expovariate(SESSIONS_PER_SECOND)
            self._at(starts, self._ask, self._random.choice(systems), TURNS)
        self._left = SESSIONS * TURNS
        self._at(0.0, self._scrape)
        while self._events:
            at, _, happens, arguments = heapq.heappop(self._events)
            self._picker.clock.advance(at - self._picker.clock.now())
            happens(*arguments)

    def _at(self, seconds: float, happens: Callable[..., None], *arguments: Any) -> None:
        heapq.heappush(self._events, (seconds, next(self._count), happens, arguments))

    def _later(self, seconds: float, happens: Callable[..., None], *arguments: Any) -> None:
        self._at(self._picker.clock.now() + seconds, happens, *arguments)

    def _load(self, name: str, at: float = 0.0) -> Load:
        engine = self._engines[name]
        return build.load(
            at=at,
            queued=engine.waiting, running=engine.running, kv_usage=engine.kv_usage,
            cache=CacheInfo(BLOCK, self._tokens[name] if self._told else None),
        )  # fmt: skip

    def _endpoint(self, name: str) -> Endpoint:
        return build.endpoint(name, host=f"{name}.test", load=self._load(name))

    def _scrape(self) -> None:
        for name in self._engines:
            self._picker.scrape(name, self._load(name, self._picker.clock.now()))
        if self._left:
            self._later(SCRAPE_SECONDS, self._scrape)

    def _ask(self, said: bytes, turns: int) -> None:
        prompt = said + self._random.randbytes(4 * QUESTION)
        answer = self._random.randbytes(4 * ANSWER)
        exchange = self._picker.send(prompt)
        name, id_ = target(exchange), str(next(self._count))
        ids = np.frombuffer(prompt + answer, dtype=np.uint32)
        request = Request(id_, len(prompt) // 4, ANSWER, block_hashes(ids, BLOCK))
        self._open[id_] = (exchange, prompt + answer, turns - 1)
        self._engines[name].submit(request, self._picker.clock.now())
        self._step(name)

    def _step(self, name: str) -> None:
        if name not in self._busy:
            seconds = self._engines[name].begin(self._picker.clock.now())
            if seconds is not None:
                self._busy.add(name)
                self._later(seconds, self._stepped, name)

    def _stepped(self, name: str) -> None:
        self._busy.discard(name)
        for story in self._engines[name].complete(self._picker.clock.now()).finished:
            self._ended(story)
        self._step(name)

    def _ended(self, story: Finished) -> None:
        exchange, said, turns = self._open.pop(story.id)
        (match,) = exchange.request.prefix.values()
        held = match.held.get(exchange.pick.endpoints[0].id, 0) * match.block_tokens
        self.predicted += held
        self.missed += max(held - story.cached_tokens, 0)
        self.prompt += story.prompt_tokens
        self.cached += story.cached_tokens
        assert story.first_token_at is not None
        self.ttfts.append(story.first_token_at - story.arrived_at)
        exchange.usage = Usage(story.prompt_tokens, story.output_tokens, story.cached_tokens)
        exchange.complete()
        self._left -= 1
        if turns:
            self._later(self._random.expovariate(1 / THINK_SECONDS), self._ask, said, turns)


def _never(endpoint_id: EndpointId, match: PrefixMatch) -> bool:
    return False


def fleets(tokens: dict[str, int], *, told: bool, corrects: bool) -> list[Fleet]:
    return [Fleet(tokens, told=told, corrects=corrects, seed=seed) for seed in (3, 4)]


def missed(runs: list[Fleet]) -> float:
    return sum(run.missed for run in runs) / sum(run.predicted for run in runs)


def ttft(runs: list[Fleet]) -> float:
    return fmean(seconds for run in runs for seconds in run.ttfts)


UNEVEN = {"small": 25_000, "large": 100_000, "larger": 100_000}


def test_an_engine_that_holds_less_than_thought_is_found_out_and_relieved() -> None:
    plain = fleets(UNEVEN, told=False, corrects=False)
    corrected = fleets(UNEVEN, told=False, corrects=True)
    assert missed(plain) > 0.04
    assert missed(corrected) < missed(plain) / 2
    assert ttft(corrected) < ttft(plain)
    for run in corrected:  # blocks of the index have 64 tokens
        assert run.capacity("small") * 64 < 2 * UNEVEN["small"]


def test_where_engines_tell_what_they_hold_nothing_is_there_to_correct() -> None:
    runs = fleets(UNEVEN, told=True, corrects=True)
    assert missed(runs) < 0.01
    for run in runs:
        assert run.capacity("large") >= 0.7 * UNEVEN["large"] / 64


def test_equal_engines_that_do_not_tell_lose_nothing_by_the_correction() -> None:
    equal = dict.fromkeys(UNEVEN, 60_000)
    plain = fleets(equal, told=False, corrects=False)
    corrected = fleets(equal, told=False, corrects=True)
    assert missed(corrected) < missed(plain)
    assert ttft(corrected) < 1.1 * ttft(plain)


@pytest.mark.parametrize("corrects", [False, True])
def test_large_caches_are_believed_as_they_are(corrects: bool) -> None:
    run = Fleet(dict.fromkeys(UNEVEN, 400_000), told=False, corrects=corrects, seed=1)
    assert run.missed == 0
    assert run.capacity("small") == 31_250
