"""Wasserstein-1 is a metric of distributions, and intervals hold what they promise."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.recording.record import Record
from epp.traffic.study.compare import compare
from epp.traffic.study.distance import least_sample, percentile_interval, wasserstein
from epp.traffic.study.shown import shown
from epp.traffic.trace import Trace

values = st.lists(st.integers(-10_000, 10_000).map(lambda tenths: tenths / 10), min_size=1, max_size=12)  # fmt: skip


def area(first: list[float], second: list[float]) -> float:
    """The definition: the area between both distribution functions."""
    edges = sorted({*first, *second})
    total = 0.0
    for low, high in pairwise(edges):
        shares = [sum(each <= low for each in some) / len(some) for some in (first, second)]
        total += abs(shares[0] - shares[1]) * (high - low)
    return total


@given(values, values)
def test_it_is_the_area_between_the_distribution_functions(a: list[float], b: list[float]) -> None:
    assert wasserstein(a, b) == pytest.approx(area(a, b), abs=1e-9)


@given(values, values, values)
def test_it_is_a_metric(a: list[float], b: list[float], c: list[float]) -> None:
    assert wasserstein(a, b) == pytest.approx(wasserstein(b, a), abs=1e-9)
    assert wasserstein(a, c) <= wasserstein(a, b) + wasserstein(b, c) + 1e-9
    assert wasserstein(a, a) == 0.0
    same = sorted(a * len(b)) == sorted(b * len(a))
    assert (wasserstein(a, b) < 1e-9) == same


@given(values, values, st.integers(-50, 50), st.integers(0, 9))
def test_moving_and_stretching_move_and_stretch_it(
    a: list[float], b: list[float], shift: int, times: int
) -> None:
    assert wasserstein(a, [each + shift for each in a]) == pytest.approx(abs(shift), abs=1e-9)
    stretched = wasserstein([each * times for each in a], [each * times for each in b])
    assert stretched == pytest.approx(times * wasserstein(a, b), abs=1e-6)


@given(values, st.integers(1, 5))
def test_only_shares_count_not_how_many_there_are(a: list[float], times: int) -> None:
    assert wasserstein(a * times, a) == pytest.approx(0.0, abs=1e-9)


@given(values)
def test_of_samples_of_one_size_it_is_the_mean_distance_of_their_ranks(a: list[float]) -> None:
    b = [each * 3 - 7 for each in a]
    ranks = zip(sorted(a), sorted(b), strict=True)
    expected = math.fsum(abs(x - y) for x, y in ranks) / len(a)
    assert wasserstein(a, b) == pytest.approx(expected, abs=1e-6)


@settings(deadline=None, max_examples=12)
@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=40), st.sampled_from([1.0, 50.0, 99.0]))
def test_an_interval_lies_between_the_smallest_and_the_largest(
    known: list[float], percent: float
) -> None:
    found = percentile_interval(known, percent)
    assert min(known) <= found.low <= found.high <= max(known)
    assert found == percentile_interval(known, percent)  # no chance in it


@pytest.mark.parametrize("percent", [1.0, 5.0, 50.0, 90.0, 99.0, 99.9])
def test_the_least_sample_is_the_first_whose_extremes_hold_the_percentile(percent: float) -> None:
    def outside(count: int) -> float:
        return (percent / 100) ** count + (1 - percent / 100) ** count

    count = least_sample(percent)
    assert outside(count) <= 0.05 + 1e-12 < outside(count - 1)


def test_an_interval_holds_the_true_percentile_about_as_often_as_it_says() -> None:
    random = np.random.default_rng(5)
    truth = math.log(2)  # the median of an exponential law of mean 1
    found = [percentile_interval(random.exponential(1.0, 100), 50) for _ in range(40)]
    share = sum(each.low <= truth <= each.high for each in found) / len(found)
    assert 0.82 <= share <= 1.0  # 0.95, with a standard deviation of 0.035


def test_what_only_one_trace_has_is_not_called_equal() -> None:
    def of(sessions: list[str]) -> Trace:
        return Trace(
            tuple(
                Record(at=float(i), input_tokens=9, output_tokens=0, session=name)
                for i, name in enumerate(sessions)
            ),
            16,
        )

    found = compare(of(["a", "b", "c"]), of(["a", "a", "c"]))
    gaps = next(each for each in found.distances if each.name.startswith("gap of turns"))
    assert (gaps.distance, gaps.share) == (None, None)
    line = next(line for line in shown(found, ("x", "y")).splitlines() if "gap of turns" in line)
    assert line.split()[-2:] == ["-", "-"]
