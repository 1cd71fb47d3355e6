"""Pauses, by hand."""

from __future__ import annotations

import pytest

from epp.kube.errors import KubeError
from epp.kube.pace import Backoff, Pace, may_resume

BACKOFF = Backoff(first=1.0, limit=30.0, longest_asked=120.0)


@pytest.mark.parametrize(
    ("failures", "least", "most"),
    [(1, 0.5, 1.0), (2, 1.0, 2.0), (5, 8.0, 16.0), (6, 15.0, 30.0), (10_000, 15.0, 30.0)],
)
def test_pauses_double_to_a_limit_and_are_drawn(failures: int, least: float, most: float) -> None:
    assert BACKOFF.pause(failures, 0.0) == least
    assert BACKOFF.pause(failures, 0.999_999) == pytest.approx(most, rel=1e-5)


def test_what_the_server_asks_for_is_never_undercut() -> None:
    assert BACKOFF.pause(1, 0.0, asked=10.0) == 10.0
    assert BACKOFF.pause(1, 0.5, asked=10.0) == 11.25
    assert BACKOFF.pause(6, 0.0, asked=1.0) == 15.0  # our own pause is longer


def test_what_the_server_asks_for_has_a_limit() -> None:
    assert BACKOFF.pause(1, 0.0, asked=86_400.0) == 120.0


def test_watches_and_lists_are_spread() -> None:
    pace = Pace(watch=45.0, relist=600.0)
    assert (pace.watch_for(0.0), pace.watch_for(0.999)) == (45, 90)
    assert (pace.relist_after(0.0), pace.relist_after(0.5)) == (600.0, 675.0)


def test_a_dead_watch_is_noticed_within_two_minutes() -> None:
    pace = Pace()
    assert pace.watch_for(0.999_999) + pace.grace < 120


@pytest.mark.parametrize("status", [0, 429, 500, 503, 504])
def test_a_server_in_trouble_lets_a_watch_resume(status: int) -> None:
    assert may_resume(KubeError("", status=status))


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410])
def test_a_refusal_does_not(status: int) -> None:
    assert not may_resume(KubeError("", status=status))
    assert not may_resume(KubeError("", reason="answer"))
