"""What is expected of a pick, from the ledger, the scrape and what earlier answers taught."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from epp.clock import ManualClock
from epp.ledger import Ledger, Reservation
from epp.model import (
    BlockHash,
    Ending,
    Endpoint,
    Expected,
    InferenceRequest,
    Outcome,
    Pick,
    PrefillLeg,
    PrefixMatch,
    Speed,
    Usage,
)
from epp.plugin import Observer
from epp.ttft.fit import PRIOR
from epp.ttft.forecast import Forecaster
from epp.ttft.parts import expected_seconds
from tests.support import build

A, B = build.endpoint("a"), build.endpoint("b", host="10.0.0.2")


class World:
    def __init__(self) -> None:
        self.clock = ManualClock(100.0)
        self.ledger = Ledger()
        self.forecaster = Forecaster(self.ledger, self.clock, bend=0.0)

    def expect(self, request: InferenceRequest, endpoint: Endpoint = A) -> Expected | None:
        """Ask and book, as the router does."""
        expected = self.forecaster.expect(request, Pick((endpoint,)))
        self.booked = self.ledger.reserve(endpoint, request.uncached_tokens(endpoint.id))
        return expected

    def answer(
        self, tokens: int, seconds: float, endpoint: Endpoint = A, **facts: Any
    ) -> Reservation:
        """One request alone, whose first byte comes after ``seconds``."""
        request = asked(tokens)
        expected, picked_at = self.expect(request, endpoint), self.clock.now()
        booked = self.booked
        self.clock.advance(seconds)
        known: dict[str, Any] = {"picked_at": picked_at, "first_byte_at": self.clock.now()}
        ending = Ending(
            Outcome.COMPLETED, self.clock.now(), 200, streamed=True, **{**known, **facts}
        )
        booked.release()
        self.forecaster.ended(request, Pick((endpoint,), expected=expected), ending)
        self.clock.advance(100.0)
        return booked

    def learn(self, endpoint: Endpoint = A) -> Speed:
        """1,000 tokens a second and 0.1 s besides."""
        for _ in range(30):
            self.answer(1, 0.101, endpoint)
            self.answer(8000, 8.1, endpoint)
        speed = self.forecaster.speed(endpoint.id)
        assert speed is not None
        assert speed.per_token == pytest.approx(0.001, rel=0.02)
        assert speed.rest == pytest.approx(0.1, rel=0.3)
        return speed


def asked(tokens: int, **facts: Any) -> InferenceRequest:
    return build.request(prompt_tokens=tokens, streaming=True, **facts)


def scraped(endpoint: Endpoint, at: float, **load: Any) -> Endpoint:
    return msgspec.structs.replace(endpoint, load=build.load(at=at, **load))


def test_it_is_an_observer() -> None:
    assert isinstance(World().forecaster, Observer)


def test_a_queue_that_is_not_told_is_not_known() -> None:
    world = World()
    world.learn()
    assert world.expect(asked(100), build.endpoint("a", queued=None)) is None
    told_half = scraped(A, 0.0, queued=None, running=2)
    assert world.expect(asked(100), told_half) is None


# --- what is expected ----------------------------------------------------------------------------


def test_before_any_answer_the_tokens_are_noted_and_no_time_is_foreseen() -> None:
    world = World()
    busy = scraped(A, 90.0, queued=0, running=1)
    assert world.forecaster.speed(A.id) is None
    assert world.expect(asked(500), busy) == Expected(0.0, 500, None)
    assert world.expect(asked(300), busy) == Expected(500.0, 300, None)


def test_requests_sent_together_wait_for_each_other() -> None:
    world = World()
    speed = world.learn()
    now = world.clock.now()
    busy = scraped(A, now - 0.01, queued=0, running=1)
    first = world.expect(asked(1000), busy)
    second = world.expect(asked(500), busy)
    third = world.expect(asked(10), busy)
    assert (first, second) == (Expected(0.0, 1000, speed), Expected(1000.0, 500, speed))
    assert third is not None
    assert third.queued == pytest.approx(1500)
    world.clock.advance(0.4)
    later = world.expect(asked(10), busy)
    assert later is not None
    assert later.queued == pytest.approx(1510 - 0.4 / speed.per_token)


def test_a_prefill_endpoint_is_taught_by_its_part_and_the_caches_way_is_expected_besides() -> None:
    world = World()
    forecaster, clock = world.forecaster, world.clock
    for tokens in (1000, 8000) * 30:  # a millisecond a token, then 0.2 s and 0.1 ms a token
        request, at = asked(tokens), clock.now()
        expected = forecaster.expect(request, Pick((A,), prefill=B))
        clock.advance(0.001 * tokens)
        leg = PrefillLeg(B, "", clock.now(), 0.001 * tokens, 1)
        clock.advance(0.2 + 0.0001 * tokens)
        ending = Ending(
            Outcome.COMPLETED, clock.now(), 200, streamed=True, picked_at=at,
            first_byte_at=clock.now(), leg=leg,
        )  # fmt: skip
        forecaster.ended(request, Pick((A,), prefill=B, expected=expected), ending)
        clock.advance(100.0)
    speed = forecaster.speed(B.id)
    assert speed is not None
    assert speed.per_token == pytest.approx(0.001, rel=0.02)
    assert speed.rest == pytest.approx(0.0, abs=0.02)
    split = forecaster.expect(asked(4000), Pick((A,), prefill=B))
    assert split is not None
    assert split.way == pytest.approx(0.6, rel=0.05)
    assert expected_seconds(split, speed) == pytest.approx(4.6, rel=0.03)
    local = forecaster.expect(asked(4000), Pick((A,)))
    assert local is not None
    assert local.way == 0.0


def test_where_a_sidecar_runs_the_prefill_the_way_is_what_is_believed_and_both_make_the_whole() -> (
    None
):
    world = World()
    forecaster, clock = world.forecaster, world.clock
    for tokens in (1000, 8000) * 30:
        request, at = asked(tokens), clock.now()
        expected = forecaster.expect(request, Pick((A,), prefill=B))
        clock.advance(0.05 + 0.001 * tokens)
        ending = Ending(
            Outcome.COMPLETED, clock.now(), 200, streamed=True, picked_at=at,
            first_byte_at=clock.now(),
        )  # fmt: skip
        forecaster.ended(request, Pick((A,), prefill=B, expected=expected), ending)
        clock.advance(100.0)
    speed = forecaster.speed(B.id)
    assert speed is not None
    assert speed.per_token == pytest.approx(0.00099, rel=0.002)  # 10 us a token are the way's
    split = forecaster.expect(asked(4000), Pick((A,), prefill=B))
    assert split is not None
    assert expected_seconds(split, speed) == pytest.approx(4.05, rel=0.01)


def test_a_request_that_ended_waits_no_longer() -> None:
    world = World()
    world.learn()
    busy = scraped(A, world.clock.now(), queued=0, running=1)
    world.expect(asked(5000), busy)
    world.booked.release()  # its client left
    after = world.expect(asked(10), busy)
    assert after is not None
    assert after.queued == 0


def test_only_uncached_tokens_count() -> None:
    world = World()
    match = PrefixMatch(tuple(map(BlockHash, range(10))), 64, {A.id: 5})
    expected = world.expect(asked(640, prefix={"approx": match}))
    assert expected == Expected(0.0, 320, None)


@pytest.mark.parametrize(
    "facts",
    [{"streaming": False}, {"computed": False}, {"multimodal": True}, {"prompt_tokens": 0}],
    ids=["no stream", "not computed", "images", "not read"],
)
def test_a_request_without_a_first_token_or_known_tokens_has_no_forecast(facts: Any) -> None:
    world = World()
    world.learn()
    assert world.expect(msgspec.structs.replace(asked(500), **facts)) is None


def test_where_the_prompt_is_computed_elsewhere_that_endpoint_counts() -> None:
    world = World()
    world.ledger.reserve(B, 700)
    pick = Pick((A,), prefill=scraped(B, 0.0, queued=0, running=1))
    expected = world.forecaster.expect(asked(100), pick)
    assert expected == Expected(700.0, 100, None, way=0.03 + 100 * 1e-5)


# --- what is learned -----------------------------------------------------------------------------


def test_an_endpoint_that_has_not_answered_is_taken_for_the_others() -> None:
    world = World()
    learned = world.learn(A)
    assert world.forecaster.speed(B.id) == Speed(learned.per_token, learned.rest, 0)
    world.answer(8000, 16.1, B)
    other = world.forecaster.speed(B.id)
    assert other is not None
    assert other.answers == 1
    # By its own answer, at the others' slope until it has shown another.
    assert other.rest + 8000 * other.per_token == pytest.approx(16.1)


def test_a_lost_endpoint_takes_its_speed_along_and_a_restarted_one_begins_anew() -> None:
    world = World()
    world.learn(A)
    world.forecaster.forget(A.id)
    world.forecaster.forget(B.id)  # one that nothing was known of
    speed = world.forecaster.speed(A.id)
    assert speed is not None
    assert speed.answers == 0


def test_an_answer_from_before_a_restart_teaches_nothing() -> None:
    world = World()
    world.answer(1000, 1.0)
    request, pick = asked(1000), Pick((A,), expected=world.expect(asked(1000)))
    ending = Ending(
        Outcome.COMPLETED, 500.0, 200,
        streamed=True, picked_at=world.clock.now(), first_byte_at=world.clock.now() + 1,
    )  # fmt: skip
    world.clock.advance(5)
    world.forecaster.forget(A.id)
    world.forecaster.ended(request, pick, ending)  # nothing is known of it
    world.expect(asked(1000))
    world.forecaster.ended(request, pick, ending)  # something is, but of the next process
    speed = world.forecaster.speed(A.id)
    assert speed is not None
    assert speed.answers == 0


@pytest.mark.parametrize(
    "facts",
    [{"first_byte_at": None}, {"served": B.address}, {"attempts": 2}],
    ids=["not seen", "another served", "a second attempt"],
)
def test_an_answer_that_is_not_the_endpoints_teaches_nothing(facts: Any) -> None:
    world = World()
    world.answer(1000, 1.0, **facts)
    assert world.forecaster.speed(A.id) is None


def test_what_the_engine_says_it_computed_is_what_teaches() -> None:
    told = Usage(prompt_tokens=2000, completion_tokens=5, cached_tokens=1000)
    world = World()
    world.answer(1000, 1.0, usage=told)
    speed = world.forecaster.speed(A.id)
    assert speed is not None
    # Half of 1,000 tokens at the prior's slope; the line goes through (500, 1.0).
    assert speed.rest == pytest.approx(1.0 - 500 * PRIOR.per_token)


# --- what a choice among all is told -------------------------------------------------------------


def speeds(world: World) -> list[float]:
    found: list[float] = world.forecaster.outlook((A, B)).seen.per_token.tolist()
    return found


def teach_both(world: World) -> None:
    """B is three times as slow as A."""
    for _ in range(60):
        for tokens in (1, 8000):
            world.answer(tokens, 0.1 + 0.001 * tokens, A)
            world.answer(tokens, 0.1 + 0.003 * tokens, B)


def test_speeds_that_answers_taught_are_those_that_a_choice_is_told() -> None:
    world = World()
    speeds(world)
    teach_both(world)
    fast, slow = speeds(world)
    assert slow / fast == pytest.approx(3.0, rel=0.15)


def test_what_was_learned_before_anybody_chose_by_it_is_known_at_the_first_choice() -> None:
    asked_always, asked_late = World(), World()
    speeds(asked_always)
    teach_both(asked_always)
    teach_both(asked_late)
    assert speeds(asked_late) == pytest.approx(speeds(asked_always), rel=0.05)


def test_a_speed_stays_as_learned_while_others_alone_are_asked() -> None:
    """It is kept relative to that of all, which moves with every answer of the others."""
    world = World()
    speeds(world)
    teach_both(world)
    for _ in range(200):
        world.answer(1, 0.103, B)
        world.answer(8000, 24.1, B)
    assert speeds(world)[0] == pytest.approx(0.001, rel=0.1)


def test_how_long_answers_take_after_their_first_byte_is_followed() -> None:
    world = World()
    for _ in range(200):
        first = world.clock.now() + 0.5
        world.answer(1000, 2.5, first_byte_at=first)
    assert world.forecaster.outlook((A,)).stay == pytest.approx(2.0, abs=0.01)
