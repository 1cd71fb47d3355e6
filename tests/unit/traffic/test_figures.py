"""Sums of samples, by hand."""

from __future__ import annotations

import pytest

from epp.traffic.figures import Sample, by_engine, figures, percentile


def test_nothing_known_is_none_not_zero() -> None:
    empty = figures([])
    assert (empty.requests, empty.errors) == (0, 0)
    assert (empty.hit_rate, empty.ttft_p50_ms, empty.ttft_p99_ms) == (None, None, None)


def test_hit_rate_is_weighted_by_tokens_and_errors_are_counted() -> None:
    samples = [
        Sample(engine="a", ttft=0.1, prompt_tokens=100, cached_tokens=0),
        Sample(engine="b", ttft=0.3, prompt_tokens=300, cached_tokens=300),
        Sample(engine="b", error="HTTP 503"),
    ]
    total = figures(samples)
    assert total.hit_rate == 0.75
    assert (total.requests, total.errors) == (3, 1)
    assert total.ttft_p50_ms == pytest.approx(100.0)
    assert total.ttft_p99_ms == pytest.approx(300.0)
    assert {name: of.requests for name, of in by_engine(samples).items()} == {"a": 1, "b": 2}


@pytest.mark.parametrize(
    ("percent", "value"),
    [
        pytest.param(50, 2, id="half of four is the second"),
        pytest.param(75, 3, id="three quarters are the third"),
        pytest.param(99, 4, id="nearly all is the last"),
        pytest.param(0, 1, id="none is the first"),
    ],
)
def test_percentiles_are_nearest_rank(percent: float, value: float) -> None:
    assert percentile([4, 1, 3, 2], percent) == value
