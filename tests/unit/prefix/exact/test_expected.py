"""What an engine is expected to hold, as a request was just picked for it."""

from __future__ import annotations

import pytest

from epp.prefix.exact import expected
from epp.prefix.exact.events import Removed, Tier
from epp.prefix.exact.index import ExactIndex
from tests.support.kv import A, B, held, index, prompt, stored


def chain(of: ExactIndex, first: int, count: int) -> tuple[int, ...]:
    return of.look_up(prompt(first, count)).chains[0]


def test_what_is_expected_counts_as_held_until_its_time():
    of = index(A, B)
    of.expect(A, chain(of, 0, 32), until=2.0)
    known = of.look_up(prompt(0, 32))
    assert known.blocks == {A: 2}
    assert known.lower == {A: (0, 2, 0, 0, 0)}
    of.expire(1.9)
    assert held(of, prompt(0, 32)) == {A: 2}
    of.expire(2.0)
    assert held(of, prompt(0, 32)) == {}
    assert of.figures()["blocks"] == 0


def test_an_event_turns_an_expectation_into_knowledge():
    of = index()
    of.expect(A, chain(of, 0, 32), until=2.0, request="r-1")
    of.apply(A, [stored(0, 1)])
    assert of.computed(A) == []
    assert of.look_up(prompt(0, 32)).lower == {A: (1, 1, 0, 0, 0)}
    of.apply(A, [stored(16, 1, parent=1)])
    assert of.computed(A) == ["r-1"]
    assert of.computed(A) == []
    of.expire(9.0)
    known = of.look_up(prompt(0, 32))
    assert (known.blocks, known.lower) == ({A: 2}, {})


def test_a_request_whose_last_block_is_there_already_is_told_nothing_about():
    of = index()
    of.apply(A, [stored(0, 2)])
    of.expect(A, chain(of, 0, 32), until=2.0, held=2, request="r-1")
    of.apply(A, [stored(0, 2)])
    assert of.computed(A) == []


def test_the_later_of_two_expectations_of_a_block_counts():
    of = index()
    of.expect(A, chain(of, 0, 32), until=5.0)
    of.expect(A, chain(of, 0, 16), until=2.0)
    of.expire(3.0)
    assert held(of, prompt(0, 32)) == {A: 2}
    of.expire(5.0)
    assert held(of, prompt(0, 32)) == {}


def test_two_requests_for_one_prompt_are_computed_together():
    of = index()
    of.expect(A, chain(of, 0, 32), until=2.0, request="r-1")
    of.expect(A, chain(of, 0, 32), until=2.5, request="r-2")
    of.apply(A, [stored(0, 2)])
    assert of.computed(A) == ["r-1", "r-2"]


def test_a_request_in_the_engines_queue_is_awaited_longer_than_its_blocks_are_believed():
    of = index()
    of.expect(A, chain(of, 0, 32), until=2.0, request="r-1")
    of.expire(2.0)
    assert held(of, prompt(0, 32)) == {}
    of.apply(A, [stored(0, 2)])
    assert of.computed(A) == ["r-1"]


def test_a_request_that_was_answered_is_not_awaited():
    of = index()
    of.expect(A, chain(of, 0, 32), until=2.0, request="r-1")
    of.expect(A, chain(of, 0, 32), until=2.0, request="r-2")
    of.answered(A, "r-1")
    of.answered(A, "r-9")
    of.apply(A, [stored(0, 2)])
    assert of.computed(A) == ["r-2"]


def test_of_many_requests_that_never_come_the_oldest_are_forgotten():
    of = index(most_bytes=100_000_000)
    for number in range(expected.MOST_AWAITED + 1):
        of.expect(A, chain(of, number, 16), until=2.0, request=f"r-{number}")
    of.expire(2.0)
    of.apply(A, [stored(0, 1), stored(1, 1)])
    assert of.computed(A) == ["r-1"]


def test_of_larger_engine_blocks_the_last_full_one_ends_the_wait():
    of = index()
    of.apply(A, [stored(9000, 1, size=64)])
    of.expect(A, chain(of, 0, 112), until=2.0, request="r-1")  # 64 tokens and 48
    of.expect(A, chain(of, 500, 48), until=2.0, request="r-2")  # nothing of it can be told
    of.apply(A, [stored(0, 1, size=64)])
    assert of.computed(A) == ["r-1"]


def test_an_expectation_of_what_is_known_elsewhere_is_the_endpoints_own():
    of = index(A, B)
    of.apply(B, [stored(0, 2)])
    of.expect(A, chain(of, 0, 32), until=2.0)
    of.forget(A)
    assert held(of, prompt(0, 32)) == {B: 2}
    of.join(A)
    while of.sweeping:
        of.sweep(9)
    assert held(of, prompt(0, 32)) == {B: 2}
    assert of.figures()["blocks"] == 2


def test_no_more_is_expected_than_there_is_room_for():
    of = index(most_bytes=100_000_000)
    tokens = (expected.MOST_BLOCKS + 1) * 16
    of.expect(A, chain(of, 0, tokens), until=2.0)
    assert held(of, prompt(0, tokens)) == {}


def test_a_prefix_whose_events_were_lost_is_known_again_once_a_request_goes_on_from_it():
    of = index()
    of.expect(A, chain(of, 0, 64), until=2.0)
    of.expire(0.0)
    of.apply(A, [stored(48, 1, parent=33)])  # three blocks were cached, as nobody told us
    of.expire(9.0)
    known = of.look_up(prompt(0, 64))
    assert (known.blocks, known.lower) == ({A: 4}, {})
    assert of.figures()["mended"] == 1
    of.apply(A, [Removed((49,))])
    assert held(of, prompt(0, 64)) == {A: 3}
    of.apply(A, [Removed((33,))])
    assert held(of, prompt(0, 64)) == {}
    assert of.figures()["blocks"] == 0


def test_blocks_that_fit_no_request_wait():
    of = index()
    of.expect(A, chain(of, 0, 64), until=2.0)
    of.apply(A, [stored(480, 1, parent=33)])
    of.expire(9.0)
    assert of.figures()["waiting_events"] == 1
    assert of.figures()["blocks"] == 0


def test_to_find_out_parents_takes_no_more_than_is_allowed_at_a_time():
    of = index(most_bytes=100_000_000)
    for number in range(40):
        of.expect(A, chain(of, number * 100_000, 8000), until=2.0)
    fits = stored(39 * 100_000 + 48, 1, parent=3_900_033)
    strangers = [stored(10**7 + 16 * number, 1, parent=10**8 + number) for number in range(40)]
    of.apply(A, [*strangers, fits])
    assert of.figures()["mended"] == 0
    of.expire(1.0)
    of.apply(A, [fits])
    assert of.figures()["mended"] == 1


def test_of_too_many_prompts_those_that_end_first_are_not_expected():
    of = index(most_bytes=100_000_000)
    shared = chain(of, 0, 8191 * 16)
    for turn in range(expected.MOST_NAMES // 8192):
        of.expect(A, [*shared, 100 + turn], until=10.0 + turn)
    of.expect(A, chain(of, 500_000, 32), until=50.0)  # more than fits: the first turn's end is over
    of.expect(A, chain(of, 600_000, 8192 * 16), until=5.0)
    assert held(of, prompt(500_000, 32)) == {A: 2}
    assert held(of, prompt(0, 160)) == {A: 10}
    assert held(of, prompt(600_000, 32)) == {}


def test_another_tier_does_not_hide_that_the_gpu_is_expected_to():
    of = index()
    of.apply(A, [stored(0, 1, tier=Tier.CPU)])
    assert of.look_up(prompt(0, 16)).lower == {A: (0, 0, 1, 0, 0)}
    of.expect(A, chain(of, 0, 16), until=2.0)
    assert of.look_up(prompt(0, 16)).lower == {A: (0, 1, 0, 0, 0)}


@pytest.mark.parametrize("twice", [False, True])
def test_of_what_is_told_all_that_was_expected_is_known_and_the_rest_expected_still(twice: bool):
    of = index()
    of.apply(A, [stored(0, 1)])
    of.expect(A, chain(of, 0, 64), until=2.0, held=0 if twice else 1)
    of.apply(A, [stored(0, 3)])
    assert of.look_up(prompt(0, 64)).lower == {A: (3, 1, 0, 0, 0)}
    of.expire(2.0)
    assert held(of, prompt(0, 64)) == {A: 3}
    of.apply(A, [Removed((1, 17, 33)), Removed((1,))])
    assert of.figures()["blocks"] == 0
