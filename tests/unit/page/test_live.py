"""The numbers of the live page; every figure is worked out by hand."""

from __future__ import annotations

import msgspec
import pytest

from epp.clock import ManualClock
from epp.ledger import InFlight, Ledger
from epp.model import BlockHash, Ending, EndpointId, Outcome, Pick, PrefixMatch
from epp.page import live
from epp.page.live import Buckets, Sample
from epp.page.traffic import Recent, Traffic
from tests.support import build

BUCKETS = Buckets(first_byte=(0.1, 0.2, 0.4), decision=(0.001,))


def sample(at: float, **facts: object) -> Sample:
    known = {"first_byte": (0, 0, 0, 0), "decision": (0, 0)}
    return Sample(at, **{**known, **facts})  # type: ignore[arg-type]


def test_a_quantile_lies_linearly_inside_its_bucket() -> None:
    # 10 observations: 4 up to 0.1, 6 up to 0.2. The 5th is the first of six in (0.1, 0.2].
    assert live.quantile(0.5, (4, 6, 0, 0), BUCKETS.first_byte) == pytest.approx(0.1 + 0.1 / 6)


def test_the_first_bucket_begins_at_zero() -> None:
    assert live.quantile(0.5, (4, 0, 0, 0), BUCKETS.first_byte) == pytest.approx(0.05)


def test_empty_buckets_below_are_passed_over() -> None:
    assert live.quantile(0.0, (0, 0, 2, 0), BUCKETS.first_byte) == pytest.approx(0.2)


def test_what_exceeds_all_bounds_is_told_as_the_highest() -> None:
    assert live.quantile(0.99, (0, 0, 0, 3), BUCKETS.first_byte) == 0.4


def test_without_observations_there_is_no_quantile() -> None:
    assert live.quantile(0.5, (0, 0, 0, 0), BUCKETS.first_byte) is None


def test_a_share_of_nothing_is_not_measured() -> None:
    assert live.share(0, 0) is None
    assert live.share(0, 4) == 0.0
    assert live.share(1, 4) == 0.25


def test_a_share_is_at_most_all() -> None:
    assert live.share(5, 4) == 1.0


def test_a_rate_looks_back_ten_seconds_and_a_share_a_minute() -> None:
    samples = [
        sample(0.0),
        sample(40.0, requests=100, ended=100, errors=10),
        sample(90.0, requests=200, ended=180, errors=10),
        sample(100.0, requests=230, ended=200, errors=15),
    ]
    found = live.summarise(samples, BUCKETS)
    assert found.requests_per_second == 3.0  # 30 in 10 s
    assert found.error_share == 0.05  # 5 of 100 since 40.0


def test_one_sample_measures_nothing() -> None:
    found = live.summarise([sample(7.0)], BUCKETS)
    assert set(msgspec.structs.astuple(found)) == {None}


def test_a_young_process_is_measured_over_its_life() -> None:
    found = live.summarise([sample(5.0), sample(9.0, requests=8)], BUCKETS)
    assert found.requests_per_second == 2.0


def test_hit_rates_are_the_pickers_and_the_engines() -> None:
    newest = sample(
        10.0, blocks=40, held=10, prompts=2, prompt_tokens=1000.0, cached=2, cached_tokens=300.0
    )
    found = live.summarise([sample(0.0), newest], BUCKETS)
    assert (found.hit_rate, found.engine_hit_rate) == (0.25, 0.3)


def test_engines_that_tell_no_cached_tokens_have_no_hit_rate() -> None:
    newest = sample(10.0, prompts=2, prompt_tokens=1000.0)
    assert live.summarise([sample(0.0), newest], BUCKETS).engine_hit_rate is None


def test_percentiles_are_of_the_last_minute_only() -> None:
    samples = [
        sample(0.0),
        sample(30.0, first_byte=(100, 0, 0, 0)),
        sample(90.0, first_byte=(100, 0, 10, 0)),
    ]
    found = live.summarise(samples, BUCKETS)
    assert found.ttft_p50 == pytest.approx(0.3)  # the 5th of ten between 0.2 and 0.4
    assert found.ttft_p99 == pytest.approx(0.2 + 0.2 * 0.99)


def test_the_parts_of_the_first_byte_are_means_of_the_last_minute() -> None:
    samples = [
        sample(0.0),
        sample(30.0, answers=10, waiting=5.0, picker=1.0, engine=9.0),
        sample(90.0, answers=14, waiting=5.0, picker=1.2, engine=10.0),
    ]
    found = live.summarise(samples, BUCKETS)
    assert (found.ttft_waiting, found.ttft_engine) == (0.0, 0.25)
    assert found.ttft_picker == pytest.approx(0.05)


def test_a_history_has_a_point_each_five_seconds_and_gaps_where_nothing_came() -> None:
    counts = {0: 0, 5: 10, 10: 10, 15: 25}
    samples = [
        sample(float(at), requests=counts[at // 5 * 5], blocks=counts[at // 5 * 5])
        for at in range(16)
    ]
    found = live.history(samples, BUCKETS)
    assert found.step == 5.0
    assert found.requests_per_second == [2.0, 0.0, 3.0]
    assert found.hit_rate == [0.0, None, 0.0]
    assert found.ttft_p50 == [None, None, None]


def test_a_history_keeps_its_step_when_samples_come_late() -> None:
    samples = [sample(at * 1.01, requests=at) for at in range(61)]
    assert len(live.history(samples, BUCKETS).requests_per_second) == 12


@pytest.mark.parametrize(
    ("endpoint", "state"),
    [
        (build.endpoint(), "ready"),
        (build.endpoint(draining=True, reachable=False), "draining"),
        (build.endpoint(reachable=False, queued=None), "unreachable"),
        (build.endpoint(load=build.load(asleep=True)), "asleep"),
        (build.endpoint(queued=None), "stale"),
    ],
)
def test_an_endpoint_is_in_one_state(endpoint, state: str) -> None:
    assert live.state_of(endpoint) == state


def test_a_row_holds_load_and_what_is_in_flight() -> None:
    endpoint = build.endpoint("a", load=build.load(at=10.0, queued=2, running=5, kv_usage=0.25))
    ledger = Ledger()
    ledger.reserve(endpoint, 700)
    recent = Recent(requests=120, ended=100, errors=3, blocks=50, held=40, seconds=60.0)
    found = live.row(endpoint, ledger.get(endpoint.id), recent, now=10.5)
    assert found == live.Row("a", "10.0.0.1:8000", "ready", 5, 2, 0.25, 1, 700, 2.0, 0.03, 0.8, 0.5)


def test_a_row_without_load_holds_no_zeros_for_it() -> None:
    found = live.row(build.endpoint(queued=None), InFlight(), Recent(), now=0.0)
    assert (found.running, found.waiting, found.kv_usage, found.age) == (None, None, None, None)
    assert (found.error_share, found.hit_rate) == (None, None)


def test_a_load_that_tells_no_kv_usage_has_none() -> None:
    endpoint = build.endpoint(load=build.load(kv_usage=None))
    assert live.row(endpoint, InFlight(), Recent(), now=0.0).kv_usage is None


def test_histograms_are_added_bucket_by_bucket() -> None:
    assert live.added([(1, 2), (3, 4)], 2) == (4, 6)
    assert live.added([], 2) == (0, 0)


# --- traffic by pod ------------------------------------------------------------------------


def asked(held: int, of: int = 4):
    blocks = tuple(BlockHash(i) for i in range(of))
    return build.request(prefix={"p": PrefixMatch(blocks, 16, {EndpointId("a"): held})})


def ending(outcome: Outcome = Outcome.COMPLETED, served: str = "") -> Ending:
    return Ending(outcome, 1.0, served=served)


def test_requests_errors_and_blocks_are_counted_where_they_went() -> None:
    traffic = Traffic(ManualClock())
    for outcome in (Outcome.COMPLETED, Outcome.FAILED, Outcome.ABANDONED):
        traffic.picked(asked(held=3), build.pick("a"))
        traffic.ended(asked(held=3), build.pick("a"), ending(outcome))
    assert traffic.recent(EndpointId("a")) == Recent(3, 3, 1, 12, 9)
    assert traffic.recent(EndpointId("b")) == Recent()
    assert traffic.total.requests == 3


def test_an_error_counts_where_the_request_was_served() -> None:
    first, second = build.endpoint("a"), build.endpoint("b", host="10.0.0.2")
    traffic = Traffic(ManualClock())
    pick = Pick((first, second))
    traffic.picked(build.request(), pick)
    traffic.ended(build.request(), pick, ending(Outcome.FAILED, served=second.address))
    assert traffic.recent(first.id).errors == 0
    assert traffic.recent(second.id).errors == 1


def test_traffic_fades_after_two_minutes() -> None:
    clock = ManualClock()
    traffic = Traffic(clock)
    traffic.picked(build.request(), build.pick("a"))
    clock.advance(60.0)
    traffic.turn()
    assert traffic.recent(EndpointId("a")) == Recent(requests=1, seconds=60.0)
    clock.advance(60.0)
    traffic.turn()
    assert traffic.recent(EndpointId("a")) == Recent(seconds=60.0)
    assert traffic.total.requests == 1


def test_a_pod_that_is_gone_is_forgotten() -> None:
    traffic = Traffic(ManualClock())
    traffic.picked(build.request(), build.pick("a"))
    traffic.forget(EndpointId("a"))
    traffic.forget(EndpointId("never seen"))
    assert traffic.recent(EndpointId("a")).requests == 0
