"""Which requests an endpoint has not computed yet, told by time, by a scrape and by the ledger."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.model import Load
from epp.ttft.backlog import Backlog
from tests.support import build

PER_TOKEN = 0.001
MANY = 10**9  #: more than was sent: the ledger says nothing


def sent(*tokens: int, at: float = 0.0) -> Backlog:
    backlog = Backlog(at)
    for each in tokens:
        backlog.send(each, at)
    return backlog


def settle(backlog: Backlog, load: Load | None, now: float, most: int = MANY) -> None:
    backlog.settle(load, PER_TOKEN, now, most=most)


def waiting(backlog: Backlog, load: Load, now: float, most: int = MANY) -> float:
    settle(backlog, load, now)
    return backlog.waiting(load, PER_TOKEN, now, most=most)


#: As old as can be: it says nothing about what was sent since.
BUSY = build.load(at=-9.0, queued=0, running=3)


# --- time ------------------------------------------------------------------------------------


def test_one_after_the_other_is_computed_at_the_speed_given() -> None:
    backlog = sent(1000, 500)
    assert waiting(backlog, BUSY, 0.0) == 1500
    assert waiting(backlog, BUSY, 0.25) == pytest.approx(1250)
    assert len(backlog) == 2
    assert waiting(backlog, BUSY, 1.25) == pytest.approx(250)
    assert len(backlog) == 1
    assert waiting(backlog, BUSY, 9.0) == 0
    assert len(backlog) == 0


def test_an_engine_without_work_begins_when_the_next_one_comes() -> None:
    backlog = sent(1000)
    settle(backlog, BUSY, 7.0)
    backlog.send(400, 7.0)
    assert waiting(backlog, BUSY, 7.1) == pytest.approx(300)


# --- the ledger --------------------------------------------------------------------------------


def test_no_more_waits_than_is_open() -> None:
    assert waiting(sent(1000, 500), BUSY, 0.0, most=500) == 500


# --- scrapes -----------------------------------------------------------------------------------


def test_a_scrape_of_an_idle_engine_shows_that_all_is_computed() -> None:
    idle = build.load(at=0.1, queued=0, running=0)
    backlog = sent(5000, 7000)
    backlog.send(300, 0.15)  # since then
    assert waiting(backlog, idle, 0.15) == 300


def test_a_batch_that_is_not_told_is_not_an_idle_engine() -> None:
    assert waiting(sent(500), build.load(at=0.1, queued=0, running=None), 0.1) == 400


def test_of_those_that_do_not_wait_the_last_step_is_left() -> None:
    # 4 wait; of the 6 others the last has 4,000 tokens, and with 2 before it they fit a step.
    backlog = sent(*[4000] * 10)
    load = build.load(at=1.0, queued=4, running=6)
    settle(backlog, load, 1.0)
    assert len(backlog) == 4 + 2
    # A prompt larger than a step is still being computed.
    backlog = sent(100, 20_000, 100)
    settle(backlog, build.load(at=1.0, queued=1, running=1), 1.0)
    assert len(backlog) == 2


def test_a_scrape_says_nothing_about_what_it_cannot_have_seen() -> None:
    backlog = sent(9000, 9000, at=1.0)
    settle(backlog, build.load(at=1.01, queued=0, running=0), 1.02)
    assert len(backlog) == 2


def test_a_scrape_is_heeded_once() -> None:
    backlog = sent(9000)
    idle = build.load(at=1.0, queued=0, running=0)
    settle(backlog, idle, 1.0)
    backlog.send(600, 0.9)  # counted as sent before, by a clock that is not quite the same
    assert waiting(backlog, idle, 1.0) == pytest.approx(500)


def test_others_requests_wait_too_but_for_two_on_their_way() -> None:
    backlog = sent(400)
    queue = build.load(at=50.0, queued=7, running=9)
    assert backlog.mean == 400
    assert waiting(backlog, queue, 50.0) == 5 * 400
    assert waiting(backlog, queue, 50.5) == pytest.approx(5 * 400 - 500)
    assert waiting(backlog, build.load(at=60.0, queued=1, running=9), 60.0) == 0


def test_our_own_may_be_the_queue() -> None:
    backlog = sent(*[400] * 7)
    assert waiting(backlog, build.load(at=0.1, queued=7, running=9), 0.1) == pytest.approx(2700)


def test_the_mean_follows_slowly() -> None:
    backlog = sent(1000, 2000)
    assert backlog.mean == pytest.approx(1050)


def test_no_more_is_remembered_than_is_open_whether_the_engine_is_scraped_or_not() -> None:
    for load in (None, BUSY):
        backlog = sent(*[10] * 50)
        settle(backlog, load, 0.0, most=3)
        assert len(backlog) == 3
        assert waiting(backlog, BUSY, 0.0) == 30
        settle(backlog, load, 9.0, most=3)
        assert len(backlog) == 0


steps = st.lists(
    st.tuples(
        st.floats(0.0, 2.0),
        st.integers(0, 50_000),
        st.none() | st.integers(0, 40),
        st.integers(0, 9),
    ),
    max_size=50,
)


@given(steps)
def test_whatever_happens_no_more_waits_than_was_sent_or_scraped(
    came: list[tuple[float, int, int | None, int]],
) -> None:
    backlog, now, all_sent, load = Backlog(0.0), 0.0, 0, BUSY
    for seconds, tokens, queued, running in came:
        now += seconds
        if queued is not None:
            load = build.load(at=now, queued=queued, running=running)
        found = waiting(backlog, load, now)
        assert 0.0 <= found <= max(all_sent, 40 * backlog.mean) + 1e-6
        assert math.isfinite(found)
        backlog.send(tokens, now)
        all_sent += tokens
