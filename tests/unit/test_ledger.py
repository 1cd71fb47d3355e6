from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from epp.ledger import CATCH_UP_TOKENS, MOVES, NOTHING, Ledger, Reservation
from tests.support import build

A, B, C = (build.endpoint(name) for name in "abc")


def test_a_reservation_counts_until_it_is_released():
    ledger = Ledger()
    reservation = ledger.reserve(A, 100)
    assert (ledger.get(A.id).requests, ledger.get(A.id).tokens) == (1, 100)
    reservation.release()
    assert (ledger.get(A.id).requests, ledger.get(A.id).tokens) == (0, 0)


def test_releasing_twice_changes_nothing():
    ledger = Ledger()
    first, _second = ledger.reserve(A, 100), ledger.reserve(A, 50)
    first.release()
    first.release()
    first.release_tokens()
    assert (ledger.get(A.id).requests, ledger.get(A.id).tokens) == (1, 50)


def test_tokens_are_released_once_however_the_exchange_goes_on():
    ledger = Ledger()
    reservation = ledger.reserve(A, 100)
    reservation.release_tokens()
    reservation.release_tokens()
    assert (ledger.get(A.id).requests, ledger.get(A.id).tokens) == (1, 0)
    reservation.release()
    assert (ledger.get(A.id).requests, ledger.get(A.id).tokens) == (0, 0)


def test_tokens_that_include_expected_output_stay_until_the_exchange_is_over():
    ledger = Ledger()
    reservation = ledger.reserve(A, 100, output=150)
    assert (ledger.get(A.id).requests, ledger.get(A.id).tokens) == (1, 250)
    reservation.release_tokens()
    assert (ledger.get(A.id).requests, ledger.get(A.id).tokens) == (1, 250)
    reservation.release()
    assert (ledger.get(A.id).requests, ledger.get(A.id).tokens) == (0, 0)


def test_a_prompt_that_an_engine_says_is_computed_waits_no_longer_and_the_request_still_runs():
    ledger = Ledger()
    first, second = ledger.reserve(A, 100, request="r1"), ledger.reserve(A, 50, request="r2")
    assert ledger.computed(A.id, "r1")
    assert (ledger.get(A.id).requests, ledger.get(A.id).tokens) == (2, 50)
    assert not ledger.computed(A.id, "r1")
    assert not ledger.computed(B.id, "r2")
    for each in (first, second):
        each.release()
    assert (ledger.get(A.id).requests, ledger.get(A.id).tokens) == (0, 0)
    assert not ledger.get(A.id).computing


def test_of_two_requests_with_one_id_the_later_is_meant_and_each_releases_its_own():
    ledger = Ledger()
    first, second = ledger.reserve(A, 100, request="r"), ledger.reserve(A, 50, request="r")
    first.release()
    assert ledger.get(A.id).tokens == 50
    assert ledger.computed(A.id, "r")
    second.release()
    assert (ledger.get(A.id).requests, ledger.get(A.id).tokens) == (0, 0)


def test_an_engines_word_does_not_end_what_is_booked_for_the_whole_answer():
    ledger = Ledger()
    reservation = ledger.reserve(A, 100, output=150, request="r")
    assert not ledger.computed(A.id, "r")
    assert ledger.get(A.id).tokens == 250
    reservation.release()
    assert ledger.get(A.id).tokens == 0


def test_the_end_of_a_leg_is_that_of_its_prefill_where_nothing_is_decoded():
    ledger = Ledger()
    first, second = (ledger.reserve(A, 100, request=each, leg=True) for each in "12")
    assert not ledger.get(A.id).told
    first.end_leg()
    first.end_leg()
    assert (ledger.get(A.id).requests, ledger.get(A.id).tokens) == (1, 100)
    assert ledger.get(A.id).told
    ledger.reserve(A, 50, request="3")  # whose end may be told with its answer's
    second.end_leg()
    assert not ledger.get(A.id).told
    assert list(ledger.get(A.id).computing) == ["3"]


def test_an_endpoint_nobody_reserved_has_nothing_in_flight():
    ledger = Ledger()
    assert ledger.get(A.id) is NOTHING
    assert ledger.since_scrape(A) == 0
    assert not ledger.all()


def test_releasing_after_the_endpoint_is_forgotten_leaves_its_successor_alone():
    ledger = Ledger()
    old = ledger.reserve(A, 100)
    ledger.forget(A.id)
    assert ledger.get(A.id).requests == 0
    ledger.reserve(A, 7)
    old.release()
    assert (ledger.get(A.id).requests, ledger.get(A.id).tokens) == (1, 7)


def test_a_newer_scrape_has_seen_all_that_was_picked_before_it():
    ledger = Ledger()
    ledger.reserve(A, 0)
    ledger.reserve(A, 0)
    assert ledger.since_scrape(A) == 2
    later = build.endpoint("a", at=1.0)
    assert ledger.since_scrape(later) == 0
    ledger.reserve(later, 0)
    assert ledger.since_scrape(later) == 1
    assert ledger.get(A.id).requests == 3


def test_a_request_that_ends_before_the_next_scrape_was_never_seen():
    ledger = Ledger()
    reservation = ledger.reserve(A, 0)
    reservation.release()
    counts = ledger.get(A.id)
    assert (counts.recent, counts.gone) == (0, 0)


def test_a_request_that_a_scrape_saw_is_gone_once_it_ends():
    ledger = Ledger()
    reservation = ledger.reserve(A, 0)
    ledger.since_scrape(build.endpoint("a", at=1.0))
    reservation.release()
    assert ledger.get(A.id).gone == 1
    ledger.since_scrape(build.endpoint("a", at=2.0))
    assert ledger.get(A.id).gone == 0


def test_tokens_a_scrape_has_seen_are_no_longer_recent():
    ledger = Ledger()
    old = ledger.reserve(A, 100)
    later = build.endpoint("a", at=1.0)
    new = ledger.reserve(later, 10)
    counts = ledger.get(A.id)
    assert (counts.tokens, counts.recent_tokens) == (110, 10)
    old.release()
    assert (counts.tokens, counts.recent_tokens) == (10, 10)
    new.release_tokens()
    new.release()
    assert (counts.tokens, counts.recent_tokens) == (0, 0)


def test_going_stale_does_not_forget_what_is_in_flight():
    ledger = Ledger()
    ledger.reserve(A, 0)
    assert ledger.since_scrape(build.endpoint("a", queued=None)) == 1


def test_a_newcomer_starts_level_with_the_least_used():
    ledger = Ledger()
    ledger.reserve(A, 1000)
    ledger.reserve(B, 2000)
    ledger.reserve(C, 10)
    # A was a newcomer to an empty ledger; B and C started level with A's 1000.
    assert ledger.get(B.id).total_tokens == 3000
    assert ledger.get(C.id).total_tokens == 1010


def test_a_request_without_tokens_still_counts_in_the_total():
    ledger = Ledger()
    ledger.reserve(A, 0)
    ledger.reserve(A, -5)
    counts = ledger.get(A.id)
    assert (counts.total_tokens, counts.tokens) == (2, 0)


def test_one_that_was_away_for_long_catches_up_at_once():
    ledger = Ledger()
    ledger.reserve(B, 1).release()
    for _ in range(100):
        ledger.reserve(A, 100_000).release()
    ledger.reserve(B, 10)
    lag = ledger.get(A.id).total_tokens - ledger.get(B.id).total_tokens
    assert lag == CATCH_UP_TOKENS - 10


@given(st.lists(st.tuples(st.sampled_from("abcxyz"), st.integers(0, 5), st.integers(0, 300))))
def test_counts_are_what_is_open_and_never_negative(steps: list[tuple[str, int, int]]):
    ledger = Ledger()
    opened: list[tuple[str, int, Reservation]] = []
    at = {"a": 0.0, "b": 0.0, "c": 0.0}
    for name, choice, tokens in steps:
        if name in at:
            at[name] += choice == 0  # a scrape, now and then
            target = build.endpoint(name, at=at[name])
            opened.append((name, tokens, ledger.reserve(target, tokens)))
        elif opened and name == "x":
            opened.pop(tokens % len(opened))[2].release()
        elif opened and name == "y":
            index = tokens % len(opened)
            opened[index][2].release_tokens()
            opened[index] = (opened[index][0], 0, opened[index][2])
        elif name == "z" and choice == 0:
            gone = "abc"[tokens % 3]
            ledger.forget(build.endpoint(gone).id)
            opened = [entry for entry in opened if entry[0] != gone]
        for endpoint in (A, B, C):
            counts = ledger.get(endpoint.id)
            mine = [entry for entry in opened if entry[0] == endpoint.id]
            assert counts.requests == len(mine)
            assert counts.tokens == sum(entry[1] for entry in mine)
            assert 0 <= counts.recent <= counts.requests
            assert 0 <= counts.recent_tokens <= counts.tokens
            assert counts.gone >= 0


def test_a_reader_is_told_on_which_endpoints_tokens_changed() -> None:
    ledger = Ledger()
    a, b = build.endpoint("a"), build.endpoint("b")
    first = ledger.reserve(a, 10)
    seen = ledger.moves.count
    assert ledger.moves.since(seen) == []
    second = ledger.reserve(b, 5)
    ledger.reserve(a, 0)  # no tokens: nothing changed
    first.release_tokens()
    first.release()  # they were gone already
    assert ledger.moves.since(seen) == ["b", "a"]
    second.release()
    assert ledger.moves.since(seen) == ["b", "a", "b"]


def test_a_reader_that_missed_too_much_is_told_so() -> None:
    ledger, endpoint = Ledger(), build.endpoint("a")
    for _ in range(MOVES + 1):
        ledger.reserve(endpoint, 1)
    assert ledger.moves.since(0) is None
    assert ledger.moves.since(-1) is None
    assert ledger.moves.since(1) == ["a"] * MOVES
