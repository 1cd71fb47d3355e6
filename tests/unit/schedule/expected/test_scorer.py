"""The scorer: order of endpoints by what is known of them, and what it learns of owners."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.clock import ManualClock
from epp.ledger import Ledger
from epp.model import (
    BlockHash,
    Ending,
    Endpoint,
    EndpointId,
    InferenceRequest,
    Outcome,
    Pick,
    PrefixMatch,
    Usage,
)
from epp.schedule.expected import ExpectedTtftScorer
from epp.schedule.expected.owner import Slots, fingerprint, ranks
from epp.schedule.expected.scorer import SPREAD, TIE
from epp.ttft.fit import PRIOR
from epp.ttft.forecast import STAY, Forecaster
from epp.ttft.queues import MEAN, UNDER_WAY
from tests.support import build

BLOCKS = tuple(BlockHash(n) for n in range(1, 41))


def asked(held: dict[str, int] | None = None, tokens: int = 2600, **facts: Any) -> InferenceRequest:
    """A prompt of 2,600 tokens, in blocks of 64."""
    known = {EndpointId(name): blocks for name, blocks in (held or {}).items()}
    match = PrefixMatch(BLOCKS, 64, known)
    return build.request(prompt_tokens=tokens, streaming=True, prefix={"p": match}, **facts)


def pod(name: str, queued: float | None = 0, **load: Any) -> Endpoint:
    return build.endpoint(name, load=build.load(queued=queued, **load))


def scorer(**params: Any) -> ExpectedTtftScorer:
    return ExpectedTtftScorer(ExpectedTtftScorer.Params(**{"hope": 0.0, **params}), build.tools())


def seconds(request: InferenceRequest, *endpoints: Endpoint, **params: Any) -> list[float]:
    found: list[float] = scorer(**params).seconds(request, endpoints).tolist()
    return found


def test_no_endpoint_has_no_score() -> None:
    assert scorer().score(asked(), ()) == []


def test_the_best_scores_one_and_a_second_more_a_half() -> None:
    scores = scorer().score(asked(), (pod("a"), pod("b", queued=40)))
    assert scores[0] == 1.0
    assert 0.0 < scores[1] < 0.5


def test_one_that_holds_the_prompt_costs_what_is_left_of_it() -> None:
    # By the prior, 1/16,000 s a token; 2,600 tokens weigh 1.0455 each, 40 that are left 1.0903.
    cold, warm = seconds(asked({"b": 40}), pod("a"), pod("b"), cache_price=0.0, crowd_price=0.0)
    assert cold - warm == pytest.approx((2600 * 1.0455 - 40 * 1.0903) / 16_000, abs=2 * TIE)


def test_a_token_of_a_long_context_costs_more() -> None:
    # 40 tokens after 10,000 others weigh 1 + 3.5e-5 * 10,020 each.
    free = {"cache_price": 0.0, "crowd_price": 0.0}
    short, long_ = (
        seconds(asked({"a": held}, tokens), pod("a"), **free)[0]
        for held, tokens in ((0, 40), (40, 2600))
    )
    assert long_ - short == pytest.approx(40 * 3.5e-5 * 2560 / 16_000, abs=2 * TIE)


def test_a_request_that_computes_nothing_goes_by_the_queue() -> None:
    found = seconds(asked(computed=False), pod("a", queued=9), pod("b"))
    assert found[1] < found[0]


@pytest.mark.parametrize("unknown", [None, build.load(queued=None), build.load(kv_usage=None)])
def test_one_that_does_not_tell_is_never_chosen_before_one_that_tells_good_news(
    unknown: Any,
) -> None:
    silent = msgspec.structs.replace(build.endpoint("a"), load=unknown)
    known = [pod("b", kv_usage=0.1), pod("c", queued=20, kv_usage=0.6)]
    found = seconds(asked(), silent, *known)
    assert found[0] > found[1]
    assert all(math.isfinite(each) for each in found)


def test_each_booking_is_seen_by_the_next_request_at_once() -> None:
    clock, ledger = ManualClock(), Ledger()
    made = ExpectedTtftScorer(ExpectedTtftScorer.Params(), build.tools(clock=clock, ledger=ledger))
    endpoints = tuple(pod(name) for name in "abcd")
    chosen = []
    for number in range(4):
        request = asked(id=f"r-{number}")
        scores = made.score(request, endpoints)
        endpoint = endpoints[scores.index(1.0)]
        chosen.append(endpoint.name)
        ledger.reserve(endpoint, request.prompt_tokens, request=request.id)
        made.picked(request, Pick((endpoint,)))
    assert sorted(chosen) == ["a", "b", "c", "d"]


queues = st.lists(st.integers(0, 30), min_size=2, max_size=8)


@settings(max_examples=25, deadline=None)
@given(queues, st.data())
def test_a_longer_queue_never_costs_less(queued: list[int], data: st.DataObject) -> None:
    which = data.draw(st.integers(0, len(queued) - 1))
    more = [n + 5 * (i == which) for i, n in enumerate(queued)]
    before, after = (
        seconds(asked(), *(pod(f"p{i}", queued=n) for i, n in enumerate(each)))
        for each in (queued, more)
    )
    others = [after[i] - before[i] for i in range(len(queued)) if i != which]
    assert after[which] - before[which] > max(others) - 1e-9


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 39), min_size=2, max_size=8), st.data())
def test_more_of_the_prompt_in_its_cache_never_costs_more(
    held: list[int], data: st.DataObject
) -> None:
    which = data.draw(st.integers(0, len(held) - 1))
    more = [n + (i == which) for i, n in enumerate(held)]
    endpoints = [pod(f"p{i}") for i in range(len(held))]
    before, after = (
        seconds(asked({f"p{i}": n for i, n in enumerate(each)}, session="s"), *endpoints)
        for each in (held, more)
    )
    assert after[which] <= before[which]


@settings(max_examples=25, deadline=None)
@given(queues, st.randoms())
def test_the_order_of_endpoints_changes_nothing(queued: list[int], chance: Any) -> None:
    endpoints = [pod(f"p{i}", queued=n) for i, n in enumerate(queued)]
    shuffled = list(endpoints)
    chance.shuffle(shuffled)
    one = dict(zip((e.id for e in endpoints), seconds(asked(), *endpoints), strict=True))
    other = dict(zip((e.id for e in shuffled), seconds(asked(), *shuffled), strict=True))
    assert one == pytest.approx(other)


def naive(asked_: InferenceRequest, held: list[int], facts: list[tuple[int, float]]) -> list[float]:
    """The formula of the documentation, one endpoint after the other, without hope and hash.

    ``facts`` are requests that wait and the KV cache in use; nobody has answered, nothing is ours.
    """
    per_token, rest, mean, prompt = PRIOR.per_token, PRIOR.rest, MEAN, asked_.prompt_tokens
    queues = [(n + UNDER_WAY * min(n, 1)) * mean for n, _ in facts]
    backlog = max(sum(queues) / len(queues) / mean - 1.0, 0.0)
    found = []
    for blocks, queue, (waiting, used) in zip(held, queues, facts, strict=True):
        left = max(prompt - 64 * blocks, 0)
        prefill = per_token * left * (1.0 + 3.5e-5 * (prompt - left / 2.0))
        wait = max(queue * per_token, waiting * STAY / 8.0 if used > 0.85 else 0.0)
        memory = 0.15 * used / (1.0 - used) + 4.0 * mean * per_token * used
        found.append(wait + (1.0 + 0.5 + 4.0 * backlog) * prefill + memory + rest)
    return found


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 40), st.integers(0, 9), st.floats(0.0, 0.97)), min_size=1,
        max_size=9,
    )
)  # fmt: skip
def test_costs_are_those_of_the_formula_taken_one_by_one(
    pods: list[tuple[int, int, float]],
) -> None:
    endpoints = [
        pod(f"p{i}", queued=queued, running=8, kv_usage=used)
        for i, (_, queued, used) in enumerate(pods)
    ]
    request = asked({f"p{i}": blocks for i, (blocks, _, _) in enumerate(pods) if blocks})
    plain = naive(request, [each[0] for each in pods], [each[1:] for each in pods])
    held = [blocks for blocks, _, _ in pods if blocks]
    slots = Slots().of(endpoints, [each.id for each in endpoints])
    key = fingerprint(request, request.match("p"), held, len(endpoints))
    near = ranks(key, slots, np.full(len(pods), PRIOR.per_token))
    worth = TIE + SPREAD * MEAN * PRIOR.per_token  # of a prompt's hash: others send all
    expected = [each - worth * rank for each, rank in zip(plain, near, strict=True)]
    assert seconds(request, *endpoints) == pytest.approx(expected)


def test_pickers_that_see_the_same_do_not_all_choose_the_same_endpoint() -> None:
    pods = [pod(f"p{n}", running=4, kv_usage=0.1 + n / 100) for n in range(8)]
    chosen = [
        costs.index(min(costs))
        for n in range(40)
        if (costs := seconds(asked(session=f"s-{n}", tokens=640), *pods))
    ]
    assert len(set(chosen)) > 4


def test_a_picker_that_sends_all_chooses_the_least_time() -> None:
    pods = [pod(f"p{n}", running=0, kv_usage=0.1 + n / 100) for n in range(8)]
    for n in range(40):
        costs = seconds(asked(session=f"s-{n}", tokens=640), *pods)
        assert costs.index(min(costs)) == 0


# --- what owners are hoped to hold ---------------------------------------------------------------


class World:
    """Two endpoints, and whatever the owner holds beyond what is known."""

    def __init__(self, **params: Any) -> None:
        self.clock, ledger = ManualClock(1.0), Ledger()
        self.forecaster = Forecaster(ledger, self.clock)
        tools = msgspec.structs.replace(
            build.tools(clock=self.clock, ledger=ledger), forecaster=self.forecaster
        )
        self.scorer = ExpectedTtftScorer(ExpectedTtftScorer.Params(**params), tools)
        self.endpoints = (pod("a"), pod("b"))

    def answer(self, number: int, cached: int | None) -> None:
        request = asked(id=f"r-{number}", session=f"s-{number}")
        scores = self.scorer.score(request, self.endpoints)
        pick = Pick((self.endpoints[scores.index(1.0)],))
        self.scorer.picked(request, pick)
        usage = Usage(2600, 10, cached)
        self.scorer.ended(request, pick, Ending(Outcome.COMPLETED, 2.0, 200, usage=usage))

    def hope(self) -> float | None:
        found: float | None = self.scorer.dump_state()["hope"]
        return found


def test_owners_that_hold_what_nobody_was_known_to_hold_are_trusted_more() -> None:
    world = World()
    for number in range(200):
        world.answer(number, cached=1300)
    assert world.hope() == pytest.approx(0.5, abs=0.02)


def test_owners_that_hold_nothing_are_trusted_no_more() -> None:
    world = World()
    for number in range(200):
        world.answer(number, cached=0)
    assert world.hope() == pytest.approx(0.0, abs=0.01)


def test_answers_that_tell_nothing_teach_nothing_and_leave_nothing_behind() -> None:
    world = World()
    for number in range(20):
        world.answer(number, cached=None)
    assert world.hope() is None
    assert world.scorer.dump_state()["open"] == 0


def test_the_owner_is_asked_although_nobody_is_known_to_hold_the_prompt() -> None:
    world = World(hope=0.5)
    chosen = set()
    for _ in range(5):
        scores = world.scorer.score(asked(session="one"), world.endpoints)
        chosen.add(scores.index(1.0))
    assert len(chosen) == 1


def test_an_owner_costs_less_by_the_share_that_it_is_hoped_to_hold() -> None:
    pods = (pod("a"), pod("b"))
    plain, hoped = (
        seconds(asked(session="one"), *pods, hope=hope, cache_price=0.0, crowd_price=0.0)
        for hope in (0.0, 0.5)
    )
    # By the prior, 1/16,000 s a token; 2,600 tokens weigh 1.0455 each.
    saved = sorted(before - after for before, after in zip(plain, hoped, strict=True))
    assert saved == pytest.approx([0.0, 0.5 * 2600 * 1.0455 / 16_000])


def test_who_sends_all_there_is_hopes_for_nothing_that_others_sent() -> None:
    pods = (pod("a"), pod("b"))
    learned, none = (seconds(asked(session="one"), *pods, hope=hope) for hope in (None, 0.0))
    assert learned == pytest.approx(none)
    others = (pod("a", queued=4, running=8), pod("b", queued=4, running=8))  # none of them ours
    learned, none = (seconds(asked(session="one"), *others, hope=hope) for hope in (None, 0.0))
    assert min(learned) < min(none) - 0.01
