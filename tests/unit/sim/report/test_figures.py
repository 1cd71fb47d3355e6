"""Figures of a run, worked out by hand."""

from __future__ import annotations

import pytest

from epp.sim.fleet.scenario import Goals
from epp.sim.fleet.story import Moment, Outcome, Story
from epp.sim.report.figures import fairness, figures_of, flaps, herd, imbalance, summarize


def story(name: str = "0-0", at: float = 0.0, **facts: object) -> Story:
    talk, turn = map(int, name.split("-"))
    told = {
        "prompt_tokens": 100, "output_tokens": 11, "ideal_tokens": 0, "pod": 0, "outcome": "ok",
        "first_at": at + 1.0, "ended_at": at + 2.0,
    }  # fmt: skip
    return Story(name, "all", "", talk, turn, at, **{**told, **facts})  # type: ignore[arg-type]


def test_tpot_is_the_time_after_the_first_token_by_the_tokens_after_it():
    assert story().tpot == pytest.approx(0.1)
    assert story(output_tokens=1).tpot is None


def test_what_was_refused_or_failed_counts_against_goodput():
    stories = [story(), story("1-0", outcome="shed"), story("2-0", outcome="failed"), story("3-0")]
    found = figures_of(stories, Goals(ttft_seconds=1.5, tpot_seconds=0.2), 10.0)
    assert found.goodput == 0.5
    assert (found.answered, found.shed, found.failed) == (2, 1, 1)
    assert found.output_tokens_per_second == pytest.approx(2.2)


def test_an_answer_that_misses_either_goal_is_not_good():
    assert figures_of([story()], Goals(ttft_seconds=0.9), 1.0).goodput == 0.0
    assert figures_of([story()], Goals(tpot_seconds=0.05), 1.0).goodput == 0.0


def test_regret_is_what_was_computed_again_of_all_that_was_computed():
    stories = [story(ideal_tokens=60, cached_tokens=20), story("1-0")]
    found = figures_of(stories, Goals(), 1.0)
    assert found.regret == pytest.approx(40 / 180)
    assert found.hit_rate == pytest.approx(20 / 200)
    assert found.ideal_hit_rate == pytest.approx(60 / 200)


def test_percentiles_are_values_that_were_measured():
    stories = [story(f"{i}-0", first_at=float(i), ended_at=200.0) for i in range(1, 101)]
    ttft = figures_of(stories, Goals(), 1.0).ttft
    assert ttft is not None
    assert (ttft.p50, ttft.p90, ttft.p99) == (50.0, 90.0, 99.0)


def test_a_herd_is_what_one_engine_gets_within_fifty_milliseconds():
    times = (0.0, 0.02, 0.04, 0.06, 0.08)
    stories = [story(f"{i}-0", at, pod=0) for i, at in enumerate(times)]
    assert herd(stories) == 3
    assert herd([story(f"{i}-0", 0.0, pod=i) for i in range(4)]) == 1


def test_a_later_turn_that_goes_elsewhere_is_a_flap():
    stories = [story("0-0", pod=1), story("0-1", pod=1), story("0-2", pod=2), story("1-0", pod=5)]
    assert flaps(stories) == 0.5


def test_fairness_is_one_where_all_compute_as_much():
    even = [story("0-0", pod=0), story("1-0", pod=1)]
    assert fairness(even) == pytest.approx(1.0)
    uneven = [*even, story("2-0", pod=0, prompt_tokens=200)]  # 300 and 100
    assert fairness(uneven) == pytest.approx(400**2 / (2 * (300**2 + 100**2)))


def test_imbalance_is_the_fullest_over_the_mean_while_there_is_work():
    moments = [Moment(0, 2, (0, 0), 0, 0.0), Moment(1, 2, (3, 1), 0, 0.0)]
    assert imbalance(moments) == 1.5


def test_requests_of_the_warm_up_count_for_nothing():
    outcome = Outcome("p", 1, [story(), story("1-0", 5.0)], [], 10.0, 0.0)
    assert summarize(outcome, Goals(), 4.0).all.requests == 1
