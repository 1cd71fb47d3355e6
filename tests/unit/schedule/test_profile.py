"""Profile, scheduler, single handler and the best-score picker."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import pytest

from epp.errors import Saturated
from epp.model import Endpoint, InferenceRequest
from epp.schedule.handlers.single import SingleProfileHandler
from epp.schedule.pickers.best import MaxScorePicker
from epp.schedule.profile import Profile
from epp.schedule.scheduler import Scheduler
from tests.support import build

A, B, C = (build.endpoint(name, host=f"10.0.0.{i}") for i, name in enumerate("abc", 1))


class Fixed:
    def __init__(self, *scores: float) -> None:
        self.scores = scores
        self.asked = 0

    def score(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> Sequence[float]:
        self.asked += 1
        return self.scores


class Without:
    def __init__(self, *unwanted: Endpoint) -> None:
        self.unwanted = unwanted

    def filter(
        self, request: InferenceRequest, endpoints: Sequence[Endpoint]
    ) -> Sequence[Endpoint]:
        return [endpoint for endpoint in endpoints if endpoint not in self.unwanted]


def picker(count: int = 1, seed: int = 0) -> MaxScorePicker:
    return MaxScorePicker(MaxScorePicker.Params(count), build.tools(seed=seed))


def profile(*scorers: tuple[Fixed, float], filters: tuple[Without, ...] = ()) -> Profile:
    return Profile("default", filters, scorers, picker())


def test_the_highest_weighted_sum_wins():
    result = profile((Fixed(1.0, 0.0, 0.5), 1.0), (Fixed(0.0, 0.5, 0.5), 2.0)).run(
        build.request(), [A, B, C]
    )
    assert result.scores == [1.0, 1.0, 1.5]
    assert result.chosen == (C,)
    assert result.candidates == (A, B, C)


@pytest.mark.parametrize(("given", "counted"), [(7.0, 1.0), (-3.0, 0.0), (math.nan, 0.0)])
def test_a_score_out_of_range_is_held_to_it(given: float, counted: float):
    result = profile((Fixed(given, 0.5), 2.0)).run(build.request(), [A, B])
    assert result.scores == [2 * counted, 1.0]


def test_a_scorer_of_weight_0_is_not_asked():
    unused = Fixed(1.0, 0.0)
    profile((unused, 0.0)).run(build.request(), [A, B])
    assert unused.asked == 0


def test_filters_apply_in_order_before_scoring():
    result = profile((Fixed(1.0), 1.0), filters=(Without(A), Without(B))).run(
        build.request(), [A, B, C]
    )
    assert result.candidates == result.chosen == (C,)


def test_nothing_left_is_saturation_not_a_crash():
    with pytest.raises(Saturated, match="no endpoints available"):
        profile(filters=(Without(A),)).run(build.request(), [A])


def test_ties_are_broken_at_random_and_evenly():
    best = picker(seed=1)
    wins = Counter(best.pick([A, B, C], [2.0, 1.0, 2.0])[0].name for _ in range(1000))
    assert set(wins) == {"a", "c"}
    assert 400 < wins["a"] < 600


def test_more_endpoints_come_best_first_with_ties_at_random():
    best = picker(3, seed=1)
    orders = {"".join(e.name for e in best.pick([A, B, C], [1.0, 5.0, 1.0])) for _ in range(50)}
    assert orders == {"bac", "bca"}
    assert picker(2).pick([A, B, C], [1.0, 2.0, 3.0]) == [C, B]
    assert picker(9).pick([A], [0.0]) == [A]


def scheduler(*, with_scores: bool = False) -> Scheduler:
    handler = SingleProfileHandler(SingleProfileHandler.Params(), build.tools())
    return Scheduler({"main": profile((Fixed(0.25, 1.0), 2.0))}, handler, with_scores)


def test_the_single_handler_runs_the_only_profile():
    pick = scheduler().pick(build.request(), [A, B])
    assert (pick.endpoints, pick.profile, pick.scores) == ((B,), "main", None)


def test_scores_are_given_by_address_where_asked():
    pick = scheduler(with_scores=True).pick(build.request(), [A, B])
    assert pick.scores == {"10.0.0.1:8000": 0.5, "10.0.0.2:8000": 2.0}
