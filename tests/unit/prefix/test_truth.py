"""Predictions against what engines report, and what the index makes of them."""

from __future__ import annotations

import pytest

from epp.clock import ManualClock
from epp.model import (
    BlockHash,
    CacheInfo,
    Ending,
    Endpoint,
    EndpointId,
    InferenceRequest,
    Outcome,
    Pick,
    PrefixMatch,
    Usage,
)
from epp.prefix.approx import SETTLED_SECONDS, ApproxPrefixCacheProducer
from epp.prefix.truth import Prediction, missed, prediction
from tests.support import build

A = build.endpoint("a")
BLOCK = 64


def request(tokens: int, seed: int = 1) -> InferenceRequest:
    text = b"".join((seed * 1_000_000 + i).to_bytes(4, "little") for i in range(tokens))
    return build.request(prompt=text, prompt_tokens=tokens)


def ending(cached: int | None, prompt: int | None = 1000, served: str = "") -> Ending:
    return Ending(Outcome.COMPLETED, 1.0, 200, served, usage=Usage(prompt, 5, cached))


# --- one prediction ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("held", "told", "found", "share"),
    [
        # 8 blocks of 64 are 512 of 1024 estimated tokens: half of the 1,000 that the engine counts.
        (8, ending(500), Prediction(1000, 500, 500), 0.0),
        (8, ending(436), Prediction(1000, 500, 436), 0.0),  # a block less: rounding
        (8, ending(186), Prediction(1000, 500, 186), 0.5),  # 500 - 186 - 64 = 250
        (8, ending(0), Prediction(1000, 500, 0), 0.872),
        (8, ending(900), Prediction(1000, 500, 900), 0.0),
        (99, ending(992), Prediction(1000, 1000, 992), 0.0),  # never more than the prompt
        (0, ending(500), Prediction(1000, 0, 500), None),
        (8, ending(None), None, None),
        (8, ending(5, prompt=None), None, None),
        (8, Ending(Outcome.ABANDONED, 1.0), None, None),
    ],
)  # fmt: skip
def test_shares_of_the_prompt_are_compared(
    held: int, told: Ending, found: Prediction | None, share: float | None
) -> None:
    asked = build.request(prompt_tokens=1024)
    match = PrefixMatch(tuple(map(BlockHash, range(16))), BLOCK, {A.id: held})
    assert prediction(asked, match, told, A.id) == found
    assert missed(asked, match, told, A.id) == share


# --- what is believed --------------------------------------------------------------------


class World:
    """One producer; ``ask`` sends a prompt to A and has the engine report cached tokens."""

    def __init__(self, endpoint: Endpoint = A, **params: int) -> None:
        self.clock = ManualClock(100.0)
        self.endpoint = endpoint
        tools = build.tools(clock=self.clock)
        self.made = ApproxPrefixCacheProducer(ApproxPrefixCacheProducer.Params(**params), tools)

    def ask(self, blocks: int, seed: int, cached: int | None) -> int:
        """Return the blocks that were predicted."""
        asked = self.made.enrich(request(blocks * BLOCK, seed), (self.endpoint,))
        pick = Pick((self.endpoint,))
        self.made.picked(asked, pick)
        told = ending(cached, prompt=blocks * BLOCK)
        self.made.ended(asked, pick, told)
        (match,) = asked.prefix.values()
        return match.held.get(self.endpoint.id, 0)

    @property
    def capacity(self) -> int:
        return self.made.index.capacity(self.endpoint.id)

    def later(self) -> None:
        self.clock.advance(SETTLED_SECONDS)


def test_a_prediction_missed_takes_from_the_oldest_and_never_from_this_prompt() -> None:
    world = World()
    for seed in range(1, 5):
        world.ask(20, seed, cached=0)
    world.later()
    # 80 blocks are held. A prediction of 20 blocks is missed but for the one that is rounding:
    # a quarter of 19/20 is taken off 80 held.
    assert world.ask(20, 2, cached=0) == 20
    assert world.capacity == int(80 * (1 - 0.25 * 19 / 20)) == 61
    assert world.ask(20, 2, cached=None) == 20  # computed just now
    assert world.ask(20, 4, cached=None) == 20
    assert world.ask(20, 1, cached=None) < 20  # the least recent had to go


def test_a_prompt_as_large_as_all_that_is_held_stays_whole() -> None:
    world = World()
    world.ask(40, 1, cached=0)
    for _ in range(5):
        world.later()
        assert world.ask(40, 1, cached=0) == 40
    assert world.capacity == 40


def test_belief_grows_again_with_predictions_that_come_true_but_not_beyond_what_is_told() -> None:
    told = build.endpoint("a", load=build.load(cache=CacheInfo(BLOCK, 100 * BLOCK)))
    world = World(told)
    for seed in range(1, 5):
        world.ask(20, seed, cached=0)
    world.later()
    world.ask(20, 2, cached=0)
    assert world.capacity == 61
    world.later()
    world.ask(20, 2, cached=20 * BLOCK)
    assert world.capacity == 62
    for _ in range(100):
        world.later()
        world.ask(20, 2, cached=20 * BLOCK)
    assert world.capacity == 100
    world.later()
    world.ask(20, 2, cached=20 * BLOCK)
    assert world.capacity == 100


def test_a_burst_of_one_prompt_that_is_not_computed_yet_says_nothing() -> None:
    world = World()
    before = world.capacity
    for _ in range(50):
        world.ask(20, 1, cached=0)
        world.clock.advance(SETTLED_SECONDS * 0.9)
    assert world.capacity == before


def test_an_engine_that_reports_nothing_is_believed_as_ever() -> None:
    world = World()
    before = world.capacity
    for _ in range(5):
        world.ask(20, 1, cached=None)
        world.later()
    assert world.capacity == before


def test_what_another_endpoint_served_says_nothing_about_the_picked_one() -> None:
    world = World()
    world.ask(20, 1, cached=0)
    world.later()
    before = world.capacity
    asked = world.made.enrich(request(20 * BLOCK, 1), (A,))
    pick = Pick((A, build.endpoint("b", host="10.0.0.2")))
    world.made.picked(asked, pick)
    world.made.ended(asked, pick, ending(0, served="10.0.0.2:8000"))
    assert world.capacity == before


def test_a_lost_endpoint_starts_with_full_belief() -> None:
    world = World()
    before = world.capacity
    for _ in range(3):
        world.ask(20, 1, cached=0)
        world.ask(20, 2, cached=0)
        world.later()
    assert world.capacity < before
    world.made.forget(EndpointId("a"))
    assert world.capacity == before


def test_what_is_only_counted_or_rendered_is_not_learned() -> None:
    world = World()
    asked = build.request(prompt=request(640).prompt, prompt_tokens=640, computed=False)
    known = world.made.enrich(asked, (A,))
    assert known.prefix == {}
    world.made.picked(known, Pick((A,)))
    assert world.made.index.entries == 0
    assert asked.uncached_tokens(A.id) == 0
