"""The scorer's formula, by hand: slope 1/32 a request, 128 tokens a request."""

from __future__ import annotations

import msgspec
import pytest

from epp.ledger import Ledger
from epp.model import BlockHash, Endpoint, EndpointId, InferenceRequest, PrefixMatch
from epp.schedule.scorers.in_flight import TIE, InFlightScorer
from tests.support import build

near = pytest.approx


def score(
    endpoints: list[Endpoint],
    ledger: Ledger | None = None,
    request: InferenceRequest | None = None,
    **params: object,
) -> list[float]:
    made = msgspec.convert(params, InFlightScorer.Params)
    scorer = InFlightScorer(made, build.tools(ledger=ledger or Ledger()))
    return scorer.score(request or build.request(), endpoints)


def endpoint(name: str, queued: float | None = 0, running: float | None = 0, at: float = 0.0):
    return build.endpoint(name, load=build.load(at=at, queued=queued, running=running))


def test_idle_endpoints_all_score_one():
    assert score([endpoint("a"), endpoint("b")]) == near([1.0, 1.0])


def test_queued_and_running_count_alike_while_the_queue_is_short():
    scores = score([endpoint("a"), endpoint("b", queued=2), endpoint("c", running=16)])
    assert scores == near([1.0, 1 - 2 / 32, 0.5], abs=TIE)


def test_a_long_queue_counts_as_tokens_too():
    # 2 of 10 are on their way into the batch; 8 x 512 tokens are 32 requests: beyond the scale.
    assert score([endpoint("a"), endpoint("b", queued=10)]) == near([1.0, 0.0], abs=TIE)
    # 6 + (4 x 128 tokens = 4 requests) = 10.
    scores = score([endpoint("a"), endpoint("b", queued=6)], waitingTokens=128)
    assert scores == near([1.0, 1 - 10 / 32], abs=TIE)


def test_our_own_in_the_queue_count_by_their_own_tokens():
    ledger = Ledger()
    for _ in range(10):
        ledger.reserve(endpoint("a"), 64)
    seen = endpoint("a", queued=10, at=1.0)
    # 10 requests and 10 x 64 / 128
    assert score([seen, endpoint("b")], ledger) == near([1 - 15 / 32, 1.0], abs=TIE)
    others = endpoint("a", queued=13, at=2.0)
    # 3 more, of which 2 are in transit and 1 is taken for 512 tokens
    assert score([others, endpoint("b")], ledger) == near([1 - 22 / 32, 1.0], abs=TIE)


def test_what_was_picked_since_the_scrape_is_added_to_it():
    ledger = Ledger()
    busy = endpoint("a", running=4)
    for _ in range(4):
        ledger.reserve(busy, 0)
    assert score([busy, endpoint("b")], ledger) == near([1 - 8 / 32, 1.0], abs=TIE)


def test_what_the_scrape_has_seen_is_not_counted_twice():
    ledger = Ledger()
    for _ in range(4):
        ledger.reserve(endpoint("a"), 0)
    later = endpoint("a", running=4, at=1.0)
    assert score([later, endpoint("b")], ledger) == near([1 - 4 / 32, 1.0], abs=TIE)


def test_what_the_scrape_has_not_shown_yet_still_counts():
    ledger = Ledger()
    for _ in range(4):
        ledger.reserve(endpoint("a"), 0)
    later = endpoint("a", running=0, at=1.0)
    assert score([later, endpoint("b")], ledger) == near([1 - 4 / 32, 1.0], abs=TIE)


def test_what_ended_since_the_scrape_is_taken_off():
    ledger = Ledger()
    first = [ledger.reserve(endpoint("a"), 0) for _ in range(4)]
    later = endpoint("a", running=10, at=1.0)
    ledger.reserve(later, 0)
    for reservation in first:
        reservation.release()
    # 10 seen - 4 ended + 1 picked since
    assert score([later, endpoint("b")], ledger) == near([1 - 7 / 32, 1.0], abs=TIE)


def test_uncached_tokens_in_flight_are_work_until_the_first_byte():
    ledger = Ledger()
    a = endpoint("a")
    reservation = ledger.reserve(a, 1280)
    assert score([a, endpoint("b")], ledger) == near([1 - 11 / 32, 1.0], abs=TIE)
    reservation.release_tokens()
    assert score([a, endpoint("b")], ledger) == near([1 - 1 / 32, 1.0], abs=TIE)


def test_tokens_of_requests_that_a_scrape_found_in_the_batch_are_computed_but_for_one():
    ledger = Ledger()
    for _ in range(4):
        ledger.reserve(endpoint("a"), 1280)
    seen = endpoint("a", queued=1, running=3, at=1.0)
    # 4 requests, and 2 of their 4 x 10 requests' worth of tokens
    assert score([seen, endpoint("b")], ledger) == near([1 - 24 / 32, 1.0], abs=TIE)
    ledger.reserve(seen, 128)  # and one that no scrape has seen, with all of its tokens
    assert score([seen, endpoint("b")], ledger) == near([1 - 26 / 32, 1.0], abs=TIE)


def test_tokens_count_in_full_while_the_queue_may_hold_them_all():
    ledger = Ledger()
    ledger.reserve(endpoint("a"), 1280)
    seen = endpoint("a", queued=0, running=1, at=1.0)
    assert score([seen, endpoint("b")], ledger) == near([1 - 11 / 32, 1.0], abs=TIE)


def test_cached_tokens_are_work_saved():
    match = PrefixMatch(tuple(map(BlockHash, range(16))), 64, {EndpointId("a"): 8})
    request = build.request(prompt_tokens=1024, prefix={"x": match})
    # 8 x 64 / 128 = 4 requests
    scores = score([endpoint("a"), endpoint("b")], request=request)
    assert scores == near([1.0, 1 - 4 / 32], abs=TIE)
    elsewhere = score(
        [endpoint("a"), endpoint("b")], request=request, prefixMatchInfoProducerName="y"
    )
    assert elsewhere == near([1.0, 1.0], abs=TIE)


def test_above_the_scale_differences_count_by_their_share():
    scores = score([endpoint("a", running=64), endpoint("b", running=80)])
    assert scores == near([1.0, 1 - 16 / 64], abs=TIE)


def test_an_endpoint_never_scraped_is_as_loaded_as_the_most_loaded():
    scores = score([endpoint("a"), endpoint("b", running=8), build.endpoint("c", queued=None)])
    assert scores == near([1.0, 1 - 8 / 32, 1 - 8 / 32], abs=TIE)


def test_a_part_that_was_not_told_is_as_large_as_the_largest_told():
    scores = score([endpoint("a", 1, 4), endpoint("b", 2, None), endpoint("c", None, 4)])
    # works 5, 2 + 4 and 2 + 4
    assert scores == near([1.0, 1 - 1 / 32, 1 - 1 / 32], abs=TIE)


def test_if_nothing_is_known_of_any_the_ledger_alone_decides():
    ledger = Ledger()
    unseen = [build.endpoint(name, queued=None) for name in "ab"]
    ledger.reserve(unseen[0], 0)
    assert score(unseen, ledger) == near([1 - 1 / 32, 1.0], abs=TIE)


def test_among_equals_the_one_that_was_sent_the_least_comes_first():
    ledger = Ledger()
    endpoints = [endpoint(name) for name in "abc"]
    for target in endpoints:  # known to all, so that none is a newcomer below
        ledger.reserve(target, 0).release()
    for target, tokens in zip(endpoints, (3000, 1000, 2000), strict=True):
        ledger.reserve(target, tokens).release()
    a, b, c = score(endpoints, ledger)
    assert a < c < b
    assert b - a == near(TIE)


def test_the_tie_break_weighs_less_than_one_request_on_a_crowded_endpoint():
    ledger = Ledger()
    ledger.reserve(endpoint("a"), 10**6).release()
    loaded = [endpoint("a", running=1000), endpoint("b", running=1001)]
    a, b = score(loaded, ledger)
    assert a > b


def test_scores_stay_within_bounds_however_far_apart_the_loads_are():
    ledger = Ledger()
    for _ in range(500):
        ledger.reserve(endpoint("b"), 100_000)
    scores = score([endpoint("a"), endpoint("b"), endpoint("c", queued=10**6)], ledger)
    assert all(0.0 <= s <= 1.0 for s in scores)
    assert scores[0] == near(1.0)


@pytest.mark.parametrize("name", ["fullScaleRequests", "tokensPerRequest"])
def test_parameters_out_of_range_are_refused(name: str):
    with pytest.raises(msgspec.ValidationError, match=name):
        msgspec.convert({name: 0}, InFlightScorer.Params)
