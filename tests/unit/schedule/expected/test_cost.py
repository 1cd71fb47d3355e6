"""What a request costs in seconds, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from epp.model import Speed
from epp.schedule.expected.cost import Prices, Waits, costs, waits
from epp.ttft.forecast import Outlook
from epp.ttft.queues import Seen

NAN = float("nan")
FREE = Prices(keep=0.0, crowd=0.0, memory=0.0)


def numbers(*values: float) -> np.ndarray:
    return np.array(values, np.float64)


def outlook(stay: float = 0.0, **facts: object) -> Outlook:
    """Two endpoints with nothing to do, at 0.1 ms a token and 0.05 s besides."""
    known = {
        "ids": ["a", "b"], "whole": True, "queue": numbers(0, 0), "own": numbers(0, 0),
        "per_token": numbers(1e-4, 1e-4), "rest": numbers(0, 0), "waiting": numbers(0, 0),
        "running": numbers(1, 1), "kv": numbers(0, 0), "sent": numbers(0, 0), "room": numbers(0, 0),
    }  # fmt: skip
    seen = Seen(**{**known, **facts})  # type: ignore[arg-type]
    return Outlook(seen, Speed(1e-4, 0.05, 9), stay, mean=1000.0, share=1.0)


def cost(known: Waits, *work: float, prices: Prices = FREE, tokens: float = 0.0) -> list[float]:
    found: list[float] = costs(
        known, numbers(*work), tokens=tokens, mean=1000.0, prices=prices
    ).tolist()
    return found


def test_an_idle_endpoint_costs_its_prefill_and_the_rest() -> None:
    # 2,000 tokens at 0.1 ms are 0.2 s, and 0.05 s besides.
    assert cost(waits(outlook()), 2000, 0) == pytest.approx([0.25, 0.05])


def test_what_waits_before_it_is_added_at_the_endpoints_own_speed() -> None:
    known = waits(outlook(queue=numbers(3000, 3000), per_token=numbers(1e-4, 2e-4)))
    assert cost(known, 1000, 1000) == pytest.approx([0.3 + 0.1 + 0.05, 0.6 + 0.2 + 0.05])


def test_own_work_is_dearer_for_the_cache_it_takes() -> None:
    assert cost(waits(outlook()), 2000, 0, prices=Prices(0.5, 0, 0)) == pytest.approx([0.35, 0.05])


def test_own_work_is_dearer_the_more_requests_wait_on_an_average_endpoint() -> None:
    # 4,000 and 2,000 tokens of work are 3 requests' worth an endpoint: one is computed, 2 wait.
    known = waits(outlook(queue=numbers(4000, 2000)))
    assert known.backlog == 2.0
    # 1,000 tokens are 0.1 s; times 1 + 4 * 2.
    assert cost(known, 1000, 1000, prices=Prices(0, 4, 0)) == pytest.approx([1.35, 1.15])


def test_a_crowded_fleet_computes_less_rather_than_waits_less() -> None:
    """Greedy least time to first token collapses near saturation; see ``docs/policy.md``."""
    prices = Prices(0.5, 4.0, 0.0)
    # The warm one waits 0.3 s longer; the cold one computes 2,500 tokens, which take 0.25 s, more.
    calm = waits(outlook(queue=numbers(3000, 0)))
    full = waits(outlook(queue=numbers(23_000, 20_000)))
    greedy = cost(full, 500, 3000)
    assert greedy[1] < greedy[0] + 1e-9 or greedy[0] - greedy[1] < 0.06
    assert cost(full, 500, 3000, prices=prices)[0] < cost(full, 500, 3000, prices=prices)[1]
    assert cost(calm, 500, 1000)[1] < cost(calm, 500, 1000)[0]


def test_a_full_cache_costs_more_without_bound() -> None:
    # 0.15 * k / (1 - k): 0.15 s at a half, 1.35 s at nine tenths.
    known = waits(outlook(kv=numbers(0.5, 0.9)))
    assert cost(known, 0, 0) == pytest.approx([0.2, 1.4])


def test_the_prompt_itself_fills_the_cache() -> None:
    # 2,000 of 10,000 tokens on 0.3, and 1,000 that were sent since: 0.6.
    facts = {"kv": numbers(0.3, 0.3), "room": numbers(1e-4, 0), "sent": numbers(1000, 1000)}
    known = waits(outlook(**facts))
    assert cost(known, 0, 0, tokens=2000) == pytest.approx(
        [0.05 + 0.15 * 0.6 / 0.4, 0.05 + 0.15 * 0.3 / 0.7]
    )


def test_a_full_engine_takes_one_request_for_each_that_leaves() -> None:
    # 20 answers of 10 s: one leaves every 0.5 s, and 6 wait. The other has room.
    facts = {"waiting": numbers(6, 6), "running": numbers(20, 20), "kv": numbers(0.9, 0.1)}
    known = waits(outlook(stay=10.0, **facts))
    assert known.seconds.tolist() == pytest.approx([3.05, 0.05])


def test_what_is_not_told_is_as_bad_as_the_worst_known() -> None:
    facts = {
        "whole": False, "queue": numbers(NAN, 2000), "own": numbers(500, 0),
        "per_token": numbers(NAN, 3e-4), "kv": numbers(NAN, 0.5),
    }  # fmt: skip
    first, second = cost(waits(outlook(**facts)), 1000, 1000)
    assert first == second


def test_own_work_counts_where_the_queue_is_not_told() -> None:
    facts = {"whole": False, "queue": numbers(NAN, 2000), "own": numbers(5000, 0)}
    assert waits(outlook(**facts)).queue.tolist() == [5000, 2000]


def test_nothing_told_of_anybody_is_still_a_number() -> None:
    nothing = numbers(NAN, NAN)
    facts = {"whole": False, **dict.fromkeys(("queue", "per_token", "kv", "waiting"), nothing)}
    facts["running"] = nothing
    assert np.isfinite(cost(waits(outlook(stay=5.0, **facts)), 1000, 0)).all()
