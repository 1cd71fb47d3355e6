"""Which rank of an endpoint is named to it."""

from __future__ import annotations

from collections import Counter

import pytest

from epp.model import EndpointId, Pick
from epp.prefix.feed.ranks import FREE, Ranks, rank_of
from tests.support import build

A, B = EndpointId("a"), EndpointId("b")


@pytest.mark.parametrize(
    ("told", "chosen"),
    [
        pytest.param({0: 0, 1: 7}, 1, id="the only one that holds some"),
        pytest.param({0: 3, 1: 7, 2: 5}, 1, id="the one that holds most"),
        pytest.param({0: 7, 1: 7}, None, id="all hold as much, so the engine chooses"),
        pytest.param({0: 0, 1: 0}, None, id="none holds any"),
        pytest.param({0: 9}, None, id="there is one only"),
        pytest.param({}, None, id="none is known"),
        pytest.param({0: 1, 1: 7, 2: 7}, 1, id="the first of two idle ones"),
    ],
)
def test_the_rank_that_holds_most_is_chosen(told: dict[int, int], chosen: int | None) -> None:
    assert Ranks().choose(A, told, in_flight=0) == chosen


def test_of_those_that_hold_as_much_the_less_busy_is_chosen() -> None:
    ranks = Ranks()
    ranks.begin(A, 1)
    assert ranks.choose(A, {0: 0, 1: 5, 2: 5}, in_flight=1) == 2
    assert ranks.choose(B, {0: 0, 1: 5, 2: 5}, in_flight=1) == 1  # the other one's do not count
    ranks.end(A, 1)
    assert ranks.choose(A, {0: 0, 1: 5, 2: 5}, in_flight=0) == 1


def test_a_rank_with_its_share_gets_no_more_but_the_next_best_does() -> None:
    ranks = Ranks()
    for _ in range(FREE):
        ranks.begin(A, 0)
    assert ranks.choose(A, {0: 9, 1: 5, 2: 0}, in_flight=FREE) == 1
    assert ranks.choose(A, {0: 9, 1: 0, 2: 0}, in_flight=FREE) is None
    assert ranks.choose(A, {0: 9, 1: 0, 2: 0}, in_flight=11) == 0  # 5 of 12 are 1.25 of a third


def test_b091_many_equal_requests_do_not_pile_up_on_one_rank() -> None:
    """Waiting requests piled up on a few data-parallel ranks of one server."""
    ranks, in_flight = Ranks(), Counter[int]()
    for _ in range(64):
        rank = ranks.choose(
            A, {0: 100, **dict.fromkeys(range(1, 8), 0)}, in_flight=in_flight.total()
        )
        if rank is None:  # the engine's own choice: who has least
            rank = min(range(8), key=in_flight.__getitem__)
        else:
            ranks.begin(A, rank)
        in_flight[rank] += 1
    assert max(in_flight.values()) - min(in_flight.values()) <= 3


def test_a_pick_says_which_rank_it_names() -> None:
    pick = build.pick("a")
    assert rank_of(pick) is None
    assert rank_of(Pick(pick.endpoints, headers={"x-data-parallel-rank": "3"})) == 3
