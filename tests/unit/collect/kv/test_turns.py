"""Tries in vain come ever later."""

from __future__ import annotations

from epp.collect.kv.turns import Turn


def test_each_try_in_vain_doubles_the_pause_up_to_five_minutes() -> None:
    turn, now, pauses = Turn(100.0), 100.0, []
    for _ in range(8):
        turn.begin(now)
        pauses.append(turn.at - now)
        now = turn.at
    assert pauses == [5, 10, 20, 40, 80, 160, 300, 300]


def test_one_that_is_not_in_vain_ends_the_row() -> None:
    turn = Turn(0.0)
    turn.begin(0.0)
    turn.begin(5.0)
    turn.done(40.0)
    assert turn.at == 40.0
    turn.begin(40.0)
    assert turn.at == 45.0
