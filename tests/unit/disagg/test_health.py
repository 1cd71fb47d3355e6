"""How long a prefill endpoint that failed rests, and how often another one may be asked."""

from __future__ import annotations

import pytest

from epp.disagg.connectors.mooncake import engine_id_in
from epp.disagg.remote.health import Health
from tests.support import build

A, B = build.endpoint("a"), build.endpoint("b", host="10.0.0.2")


def test_an_endpoint_rests_twice_as_long_each_time_and_half_a_minute_at_most() -> None:
    health, now = Health(), 100.0
    for rest in (1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0):
        health.bad(A.id, now)
        assert health.fit([A, B], now + rest - 0.001) == [B]
        assert health.fit([A, B], now + rest) == [A, B]
        now += rest
    health.good(A.id)
    health.bad(A.id, now)
    assert health.fit([A], now + 1.0) == [A]


def test_an_endpoint_that_restarts_has_failed_at_nothing() -> None:
    health = Health()
    health.bad(A.id, 0.0)
    health.forget(A.id)
    assert health.fit([A], 0.0) == [A]
    assert health.resting == 0


def test_one_request_in_five_may_be_tried_again_once_what_was_saved_up_is_used() -> None:
    health = Health()
    assert sum(health.may_retry() for _ in range(50)) == 10
    for _ in range(101):
        health.asked()
    assert sum(health.may_retry() for _ in range(50)) == 10  # no more than that is saved up
    for _ in range(16):
        health.asked()
    assert sum(health.may_retry() for _ in range(50)) == 3


@pytest.mark.parametrize(
    ("page", "rank", "told"),
    [
        (b'{"0":{"engine_id":"e0","worker_addr":{}},"1":{"engine_id":"e1"}}', 1, "e1"),
        (b'{"0":{"engine_id":"e0"}}', 1, ""),
        (b'{"0":{}}', 0, ""),
        (b"<html>", 0, ""),
    ],
)
def test_a_bootstrap_server_tells_each_ranks_engine(page: bytes, rank: int, told: str) -> None:
    assert engine_id_in(page, rank) == told
