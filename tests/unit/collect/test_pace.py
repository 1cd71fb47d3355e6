"""How often endpoints are scraped."""

from __future__ import annotations

import pytest

from epp.collect.pace import Pace
from tests.support import build

PACE = Pace(fast=0.05, idle=0.5, asleep=5.0, slowest=5.0, stale_after=2.0, max_per_second=400.0)


@pytest.mark.parametrize(
    ("load", "in_flight", "interval"),
    [
        pytest.param(build.load(queued=1), 0, 0.05, id="waiting"),
        pytest.param(build.load(running=1), 0, 0.05, id="running"),
        pytest.param(build.load(), 1, 0.05, id="sent and not seen yet"),
        pytest.param(build.load(), 0, 0.2, id="idle: twice as long as before"),
        pytest.param(build.load(asleep=True), 0, 5.0, id="asleep"),
        pytest.param(None, 3, 0.5, id="no answer"),
    ],
)
def test_the_interval_follows_the_load(load: object, in_flight: int, interval: float) -> None:
    assert PACE.wanted(0.1, load, in_flight) == interval  # type: ignore[arg-type]


def test_an_idle_endpoints_interval_is_bounded() -> None:
    assert PACE.wanted(0.4, build.load(), 0) == 0.5


def test_a_fleet_over_the_common_limit_is_scraped_more_slowly() -> None:
    assert PACE.stretched(0.05, 400.0) == 0.05
    assert PACE.stretched(0.05, 4000.0) == 0.5
    assert PACE.stretched(0.5, 20_000.0) == 5.0  # 25 s without the bound
    assert PACE.stretched(8.0, 20_000.0) == 8.0  # asked for: never faster than that


def test_a_load_is_stale_after_three_misses_at_least() -> None:
    assert PACE.stale_age(0.05) == 2.0
    assert PACE.stale_age(5.0) == 15.0
