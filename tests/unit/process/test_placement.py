"""Which CPU the picker chooses, and that its threads are there. Figures are CPU seconds."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading

from epp.process import placement
from epp.process.placement import Choice, Look, look

STAT = """\
cpu  300 0 100 9000 50 0 10 5 7 0
cpu0 100 20 30 4000 25 1 2 3 7 0
cpu1 200 0 70 5000 25 0 8 2 0 0
cpu10 1 0 0 9 0 0 0 0 0 0
intr 12345
"""


def looks(*busy: tuple[float, float], own: float = 0.0) -> Choice:
    """A choice between two CPUs after looks two seconds apart."""
    choice = Choice()
    for i, (first, second) in enumerate(busy):
        choice.take(Look({0: first, 1: second}, own * i), 2.0 * i)
    return choice


def test_nothing_is_chosen_before_there_is_a_difference_to_see() -> None:
    assert looks((5.0, 9.0)).cpu is None


def test_the_cpu_that_others_use_least_is_chosen() -> None:
    assert looks((100.0, 0.0), (100.5, 1.5)).cpu == 0
    assert looks((0.0, 100.0), (1.5, 100.5)).cpu == 1


def test_what_the_picker_uses_itself_is_no_reason_to_move() -> None:
    # On CPU 0: 1.8 s busy in each 2 s, all of it its own; CPU 1 is idle.
    busy = ((0.0, 0.0), (0.0, 0.2), (1.8, 0.2), (3.6, 0.2), (5.4, 0.2))
    choice = Choice()
    own = (0.0, 0.0, 1.8, 3.6, 5.4)
    for i, pair in enumerate(busy):
        choice.take(Look(dict(enumerate(pair)), own[i]), 2.0 * i)
    assert choice.cpu == 0


def test_a_neighbour_must_be_busy_twice_in_a_row_to_make_it_move() -> None:
    once = ((0.0, 0.0), (0.0, 0.2), (1.8, 0.2), (1.8, 0.4))
    twice = ((0.0, 0.0), (0.0, 0.2), (1.8, 0.2), (3.6, 0.2))
    assert looks(*once).cpu == 0
    assert looks(*twice).cpu == 1


def test_a_small_difference_never_moves_it() -> None:
    assert looks((0.0, 0.0), (0.0, 0.1), (0.5, 0.1), (1.0, 0.1), (1.5, 0.1)).cpu == 0


def test_a_cpu_that_went_away_is_left() -> None:
    choice = looks((0.0, 0.0), (0.0, 0.5))
    choice.take(Look({1: 0.5}, 0.0), 4.0)
    assert choice.take(Look({1: 0.6}, 0.0), 6.0) == 1


def test_idle_time_and_guests_are_not_use() -> None:
    tick = os.sysconf("SC_CLK_TCK")
    seen = look(STAT, {0, 1, 2})
    assert seen.busy == {0: (100 + 20 + 30 + 1 + 2 + 3) / tick, 1: (200 + 70 + 8 + 2) / tick}


def test_all_threads_are_moved() -> None:
    before = os.sched_getaffinity(0)
    cpu = min(before)
    stop = threading.Event()
    worker = threading.Thread(target=stop.wait, args=(30,))
    worker.start()
    try:
        placement._place(cpu)
        assert os.sched_getaffinity(0) == {cpu}
        assert os.sched_getaffinity(worker.native_id or 0) == {cpu}
        assert os.sched_getscheduler(worker.native_id or 0) == os.SCHED_BATCH
    finally:
        stop.set()
        worker.join()
        os.sched_setaffinity(0, before)
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        for thread in threading.enumerate():
            with contextlib.suppress(OSError):
                os.sched_setaffinity(thread.native_id or 0, before)


def test_one_allowed_cpu_leaves_nothing_to_do() -> None:
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        asyncio.run(asyncio.wait_for(placement.stay_together(), 5))
        assert os.sched_getscheduler(0) == os.SCHED_OTHER
    finally:
        os.sched_setaffinity(0, before)
