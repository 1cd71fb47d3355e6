"""A line learned answer by answer: what it believes first, later, and not at all."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.model import Speed
from epp.ttft.fit import FASTEST, PRIOR, SLOWEST, SURE, Fit


def learned(*answers: tuple[float, float], prior: Speed = PRIOR) -> Speed:
    fit = Fit(prior)
    for tokens, seconds in answers:
        fit.learn(tokens, seconds)
    return fit.speed


def test_before_any_answer_it_is_the_prior() -> None:
    assert learned() == PRIOR
    assert learned(prior=Speed(0.5e-3, 0.25, 7)) == Speed(0.5e-3, 0.25, 0)


def test_one_answer_moves_the_line_and_leaves_its_slope() -> None:
    # 1,000 tokens at 1/16,000 s each are 62.5 ms of the 100 ms: 37.5 ms are left.
    speed = learned((1000, 0.1))
    assert speed.per_token == pytest.approx(1 / 16_000)
    assert speed.rest == pytest.approx(0.0375)
    assert speed.answers == 1


def test_answers_faster_than_the_prior_bend_the_line_rather_than_leave_less_than_nothing() -> None:
    # 1,000 tokens in 10 ms: at the prior's slope alone they would take 62.5 ms.
    speed = learned((1000, 0.01))
    assert speed.per_token == pytest.approx(1e-5)
    assert speed.rest == 0.0


def test_equal_prompts_teach_their_time_whatever_the_slope() -> None:
    speed = learned(*[(1000, 0.1)] * 60)
    assert speed.rest + 1000 * speed.per_token == pytest.approx(0.1)


def test_two_sizes_teach_the_slope_but_for_the_weight_of_the_prior() -> None:
    # 0.08 s for 4,000 tokens; a spread of 2,000 tokens fifty times counts more than 512 once.
    speed = learned(*[(0, 0.01), (4000, 0.09)] * 60)
    assert speed.per_token == pytest.approx(20e-6, rel=0.01)
    assert speed.rest == pytest.approx(0.01, rel=0.05)


def test_noise_averages_out_and_change_is_followed() -> None:
    chance = random.Random(7)
    fit = Fit()

    def teach(per_token: float, rest: float, answers: int) -> Speed:
        for _ in range(answers):
            tokens = chance.uniform(0, 4000)
            fit.learn(tokens, (rest + per_token * tokens) * chance.uniform(0.9, 1.1))
        return fit.speed

    slow = teach(40e-6, 0.015, 200)
    assert slow.per_token == pytest.approx(40e-6, rel=0.06)
    fast = teach(10e-6, 0.015, 200)  # the engine's neighbour left the machine
    assert fast.per_token == pytest.approx(10e-6, rel=0.12)
    assert fast.answers == 400


def test_an_outlier_counts_as_slow_and_no_more() -> None:
    usual = [(1000.0, 0.05)] * SURE
    stalled = learned(*usual, (1000, 60.0))
    # Counted as 4 * 0.05 + 0.1 = 0.3 s, as a ninth of what was seen: (8 * 0.05 + 0.3) / 9.
    assert stalled.rest + 1000 * stalled.per_token == pytest.approx(0.7 / 9, rel=0.06)
    early = learned(*usual[1:], (1000, 60.0))  # too little was seen to call it one
    assert early.rest + 1000 * early.per_token > 5


def test_an_answer_of_little_weight_teaches_little() -> None:
    def at_4000(weight: float) -> float:
        fit = Fit()
        for tokens, seconds in [(0, 0.01), (4000, 0.09)] * 10:
            fit.learn(tokens, seconds)
        fit.learn(4000, 0.19, weight)
        return fit.speed.rest + 4000 * fit.speed.per_token

    # One more beside ten of the kind, by far the most recent: about a tenth of the 0.1 s.
    assert at_4000(1.0) == pytest.approx(0.1, abs=0.004)
    assert at_4000(0.05) == pytest.approx(0.09, abs=0.001)


answers = st.lists(
    st.tuples(st.floats(0, 1e7), st.floats(0, 1e4), st.floats(0.001, 1.0)), max_size=60
)


@given(answers)
def test_whatever_comes_a_speed_stays_one_that_can_be(
    came: list[tuple[float, float, float]],
) -> None:
    fit = Fit()
    for tokens, seconds, weight in came:
        fit.learn(tokens, seconds, weight)
    assert FASTEST <= fit.speed.per_token <= SLOWEST
    assert 0.0 <= fit.speed.rest <= 1e5


# --- what one endpoint taught against what all did -----------------------------------------------


def taught(per_token: float, answers: int, *, noise: float = 0.2, seed: int = 1) -> Fit:
    chance = random.Random(seed)
    fit = Fit()
    for _ in range(answers):
        tokens = chance.uniform(0, 8000)
        fit.learn(tokens, (0.05 + per_token * tokens) * chance.uniform(1 - noise, 1 + noise))
    return fit


@pytest.mark.parametrize("seed", range(5))
def test_endpoints_that_differ_by_chance_are_alike(seed: int) -> None:
    every = taught(50e-6, 400, seed=99).speed
    one = taught(50e-6, 40, seed=seed).within(every)
    assert (one.per_token, one.rest) == (every.per_token, every.rest)


def test_an_endpoint_at_half_the_speed_is_known_to_be_slow() -> None:
    every = taught(50e-6, 400).speed
    assert taught(100e-6, 60).within(every).per_token == pytest.approx(100e-6, rel=0.1)


def test_a_few_answers_make_no_endpoint_another_one() -> None:
    every = taught(50e-6, 400).speed
    few = taught(5e-6, SURE - 1, noise=0.0).within(every)
    assert (few.per_token, few.rest, few.answers) == (every.per_token, every.rest, SURE - 1)
