"""What readings in a row say together."""

from __future__ import annotations

from epp.collect.parse.engines import Reading
from epp.collect.parse.history import PARTIAL_SECONDS, History
from epp.model import Load


def reading(
    at: float = 0.0,
    *,
    ranks: int = 1,
    started: float | None = None,
    work: float | None = None,
    asleep: bool = False,
) -> Reading:
    load = Load(at=at, queued=1.0, running=1.0, kv_usage=0.5, asleep=asleep)
    return Reading(load, ranks=ranks, started=started, work=work, found=True)


def restarts(*readings: Reading) -> list[bool]:
    history = History()
    return [history.take(each).restarted for each in readings]


def test_a_later_start_is_another_process() -> None:
    assert restarts(reading(started=100.0), reading(started=100.0), reading(started=110.0)) == [
        False,
        False,
        True,
    ]


def test_a_start_time_that_wanders_is_the_same_process() -> None:
    assert restarts(reading(started=100.0), reading(started=101.0)) == [False, False]


def test_a_counter_that_went_back_is_another_process() -> None:
    assert restarts(reading(work=50.0), reading(work=60.0), reading(work=10.0)) == [
        False,
        False,
        True,
    ]


def test_a_start_time_missing_once_is_remembered() -> None:
    assert restarts(reading(started=1.0), reading(), reading(started=50.0)) == [False, False, True]


def test_a_missing_ranks_counter_is_no_restart() -> None:
    assert restarts(reading(ranks=2, work=60.0), reading(ranks=1, work=20.0)) == [False, False]


def test_falling_asleep_voids_the_cache_once() -> None:
    assert restarts(reading(), reading(asleep=True), reading(asleep=True), reading()) == [
        False,
        True,
        False,
        False,
    ]


def test_fewer_ranks_than_before_are_not_told() -> None:
    history = History()
    history.take(reading(0.0, ranks=8))
    part = history.take(reading(1.0, ranks=1))
    assert part.partial
    assert (part.load.queued, part.load.running, part.load.kv_usage) == (None, None, None)
    whole = history.take(reading(2.0, ranks=8))
    assert not whole.partial
    assert whole.load.queued == 1.0


def test_fewer_ranks_for_long_are_all_there_are() -> None:
    history = History()
    history.take(reading(0.0, ranks=8))
    history.take(reading(1.0, ranks=4))
    assert history.take(reading(0.9 + PARTIAL_SECONDS, ranks=4)).partial
    assert not history.take(reading(1.1 + PARTIAL_SECONDS, ranks=4)).partial


def test_a_restarted_process_may_have_fewer_ranks() -> None:
    history = History()
    history.take(reading(0.0, ranks=8, started=1.0))
    assert not history.take(reading(1.0, ranks=4, started=50.0)).partial
