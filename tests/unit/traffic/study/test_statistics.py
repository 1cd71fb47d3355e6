"""Arrivals, distances and intervals: values worked out by hand, or known of a process."""

from __future__ import annotations

import numpy as np
import pytest

from epp.recording.record import Record
from epp.traffic.study.arrivals import (
    detick,
    dispersion,
    local_variation,
    peak,
    variation,
)
from epp.traffic.study.compare import compare
from epp.traffic.study.distance import (
    least_sample,
    percentile_interval,
    sample_for,
    wasserstein,
)
from epp.traffic.study.shown import shown
from epp.traffic.trace import Trace

RANDOM = np.random.default_rng(7)


def test_a_steady_beat_has_no_variation() -> None:
    times = np.arange(100.0)
    assert variation(times) == 0.0
    assert local_variation(times) < 0.11
    assert dispersion(times, 10.0) == pytest.approx(0.0, abs=0.02)
    assert peak(times, 10.0) == pytest.approx(1.0, abs=0.11)


def test_a_poisson_process_has_variation_and_dispersion_of_one() -> None:
    times = np.cumsum(RANDOM.exponential(1.0, 20_000))
    assert variation(times) == pytest.approx(1.0, abs=0.05)
    assert local_variation(times) == pytest.approx(1.0, abs=0.05)
    assert dispersion(times, 10.0) == pytest.approx(1.0, abs=0.15)


def test_drift_shows_in_dispersion_and_not_in_local_variation() -> None:
    quiet, busy = RANDOM.exponential(2.0, 5000), RANDOM.exponential(0.2, 5000)
    times = np.cumsum(np.concatenate((quiet, busy)))
    assert variation(times) > 1.3
    assert local_variation(times) == pytest.approx(1.0, abs=0.06)
    assert dispersion(times, 60.0) > 20


def test_a_ticking_clock_is_spread_and_another_is_left_alone() -> None:
    spread = detick([0.0] * 10 + [3.0] * 10 + [6.0] * 10)
    assert len(np.unique(spread)) == 30
    assert 6.0 < spread[-1] < 9.0
    assert detick([2.0, 1.0, 4.0]).tolist() == [1.0, 2.0, 4.0]


def test_wasserstein_is_the_distance_that_a_shift_moves() -> None:
    assert wasserstein([1, 2, 3], [3, 4, 5]) == pytest.approx(2.0)
    assert wasserstein([0, 1], [0, 0, 1, 1]) == pytest.approx(0.0)
    assert wasserstein([0], [0, 10]) == pytest.approx(5.0)
    assert wasserstein([], [1]) == 0.0


def test_how_many_a_percentile_needs() -> None:
    # 0.99 ** 299 < 0.05 < 0.99 ** 298; of the median 2 * 0.5 ** 6 < 0.05 < 2 * 0.5 ** 5.
    assert least_sample(99) == 299
    assert least_sample(50) == 6


def test_an_interval_holds_its_value_and_more_values_make_it_narrower() -> None:
    few, many = RANDOM.exponential(1.0, 400), RANDOM.exponential(1.0, 6400)
    small, large = percentile_interval(few, 99), percentile_interval(many, 99)
    assert small.low <= small.value <= small.high
    assert large.high - large.low < small.high - small.low
    assert sample_for(few[:100], 99) is None
    needed = sample_for(many, 99)
    assert needed is not None
    assert 299 < needed < 20_000


def made(ttft: float, gap: float = 1.0) -> Trace:
    return Trace(
        tuple(
            Record(at=i * gap, input_tokens=100, output_tokens=5, runs=((i // 2, 1),),
                   ttft=ttft + (i % 7) / 100)
            for i in range(400)
        ),
        100,
    )  # fmt: skip


def test_a_trace_agrees_with_itself() -> None:
    same = compare(made(0.5), made(0.5))
    assert same.worst_hit == 0.0
    assert {each.distance for each in same.distances} == {0.0}
    assert not any(ttft.differ for ttft in same.ttfts)


def test_what_differs_is_found_and_told() -> None:
    found = compare(made(0.5), made(0.9, gap=2.0))
    gaps = next(each for each in found.distances if each.name.startswith("gap of requests"))
    assert (gaps.distance, gaps.share) == (1.0, 1.0)
    assert all(ttft.differ for ttft in found.ttfts)
    said = shown(found, ("mirror", "replay"))
    assert "TTFT p99 mirror: 560 ms" in said
    assert "they differ" in said
