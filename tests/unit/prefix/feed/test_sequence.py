"""Which messages are taken in, in what order, and when old ones are asked for."""

from __future__ import annotations

from epp.prefix.feed import sequence
from epp.prefix.feed.sequence import Apply, Ask, Reset, Sequence, Step


def message(number: int) -> bytes:
    return f"m{number}".encode()


def live(of: Sequence, *numbers: int, now: float = 0.0, process: int = 0) -> list[Step]:
    """Hand in messages, sent by the engine's clock at 100 per process, one per second."""
    steps: list[Step] = []
    for number in numbers:
        at = 100.0 * (process + 1) + number
        steps += of.live(number, message(number), at=at, now=now)
    return steps


def replayed(of: Sequence, *numbers: int, now: float = 0.0) -> list[Step]:
    steps: list[Step] = []
    for number in numbers:
        steps += of.replayed(number, message(number), at=100.0 + number, now=now)
    return steps


def applied(*numbers: int) -> list[Step]:
    return [Apply(message(number)) for number in numbers]


def following(*, can_ask: bool = True, upto: int = 2) -> Sequence:
    """Return one that heard everything from 0 on, before number ``upto``."""
    of = Sequence(can_ask=can_ask)
    live(of, *range(upto))
    return of


def test_messages_in_order_are_applied_at_once_and_all_is_known():
    of = Sequence(can_ask=True)
    assert live(of, 0, 1, 2) == applied(0, 1, 2)
    assert (of.whole, of.reason, of.catching_up) == (True, "", False)


def test_an_engine_that_told_nothing_yet_is_wholly_known():
    of = Sequence(can_ask=True)
    assert of.joined(0.0) == [Ask(0)]
    assert (of.whole, of.reason) == (False, "silent")
    assert of.replay_ended(0.1) == []
    assert (of.whole, of.catching_up) == (True, False)
    assert live(of, 0) == applied(0)


def test_a_late_joiner_asks_from_the_start_and_old_ones_come_first():
    of = Sequence(can_ask=True)
    assert live(of, 7) == [Ask(0)]
    assert live(of, 8) == []
    assert replayed(of, *range(6)) == applied(*range(6))
    assert replayed(of, 6, 7, 8) == applied(6, 7, 8)
    assert of.replay_ended(0.1) == []
    assert live(of, 9) == applied(9)
    assert of.whole


def test_b112_of_a_gap_only_the_missing_are_asked_for_and_nothing_is_dropped():
    """Field problem B112 (ai-dynamo/dynamo PR 14627): any small gap wiped all."""
    of = following(upto=5)
    assert live(of, 6) == [Ask(5)]
    assert replayed(of, 5) == applied(5, 6)
    assert (of.gaps, of.lost, of.whole) == (1, 0, True)


def test_messages_that_nobody_has_any_more_cost_what_is_known():
    of = following(upto=5)
    live(of, 20)
    assert replayed(of, 12) == [Reset("history_lost"), *applied(12)]
    assert replayed(of, *range(13, 20)) == [*applied(*range(13, 20)), *applied(20)]
    assert (of.lost, of.whole, of.reason) == (7, False, "history_lost")
    assert live(of, 21) == applied(21)


def test_a_joiner_later_than_the_engines_memory_starts_with_the_oldest_there_is():
    of = Sequence(can_ask=True)
    live(of, 30_000)
    assert replayed(of, 20_001) == [Reset("history_lost"), *applied(20_001)]
    assert (of.whole, of.reason) == (False, "history_lost")


def test_without_anybody_to_ask_a_gap_keeps_what_is_known_and_nothing_waits():
    of = following(can_ask=False, upto=5)
    assert live(of, 6, 7) == applied(6, 7)
    assert (of.whole, of.reason, of.lost) == (False, "not_replayed", 1)
    assert live(of, 8) == applied(8)
    assert live(of, 0, process=5) == [Reset("restarted"), *applied(0)]
    assert of.whole


def test_a_gap_after_a_broken_connection_may_be_another_process_and_costs_what_is_known():
    of = following(can_ask=False, upto=5)
    assert of.joined(0.0) == []
    assert live(of, 6, 7) == [Reset("not_replayed"), *applied(6, 7)]
    assert (of.whole, of.reason, of.lost) == (False, "not_replayed", 1)


def test_a_replay_that_does_not_come_is_given_up_and_tried_again_much_later():
    of = following(upto=5)
    live(of, 6)
    assert of.tick(1.9) == []
    assert of.tick(2.0) == [Ask(5)]
    assert of.tick(4.0) == [Ask(5)]
    assert of.tick(6.0) == applied(6)  # what was known is still mostly true
    assert live(of, 7, now=6.5) == applied(7)
    assert of.tick(35.9) == []
    assert of.tick(36.0) == [Ask(0)]
    steps = replayed(of, *range(8), now=36.1)
    assert steps == [Reset("rebuilt"), *applied(*range(8))]
    assert (of.replay_ended(36.2), of.whole) == ([], True)


def test_a_later_replay_that_has_less_than_is_known_changes_nothing():
    of = following(upto=5)
    live(of, 6)
    for now in (2.0, 4.0, 6.0):
        of.tick(now)
    assert of.tick(36.0) == [Ask(0)]
    assert live(of, 7) == []
    assert replayed(of, 6, now=36.1) == applied(7)
    assert (of.catching_up, of.reason) == (False, "history_lost")


def test_pauses_between_tries_double():
    of = Sequence(can_ask=True)
    of.joined(0.0)
    asked = [half / 2 for half in range(1, 500) if Ask(0) in of.tick(half / 2)]
    # Each round asks three times, two seconds apart, and gives up two seconds later.
    assert asked == [2, 4, 36, 38, 40, 102, 104, 106, 228, 230, 232]


def test_a_slow_replay_is_not_given_up_while_it_brings_something():
    of = Sequence(can_ask=True)
    live(of, 9)
    for number in range(9):
        assert of.tick(number * 1.5) == []
        replayed(of, number, now=number * 1.5)
    assert of.whole


def test_numbers_that_start_again_are_another_process():
    of = following(upto=5)
    assert live(of, 0, 1, process=1) == [Reset("restarted"), *applied(0, 1)]
    assert (of.whole, of.restarts) == (True, 1)


def test_a_restart_whose_first_messages_were_missed_is_asked_for_them():
    of = following(upto=5)
    assert live(of, 2, process=1) == [Reset("restarted"), Ask(0)]
    assert replayed(of, 0, 1) == [*applied(0, 1), *applied(2)]
    assert of.whole


def test_a_restart_during_a_replay_drops_what_was_held():
    of = following(upto=5)
    live(of, 9)
    assert live(of, 0, process=1) == [Reset("restarted"), *applied(0)]
    assert not of.catching_up


def test_an_old_message_that_comes_again_is_left_out():
    of = following(upto=5)
    assert live(of, 4, 4, 2) == []
    assert live(of, 5) == applied(5)


def test_an_engine_that_restarted_with_its_clock_set_back_is_believed_in_the_end():
    of = following(upto=200)
    steps = [of.live(number, message(number), at=50.0 + number, now=0.0) for number in range(12)]
    assert [Reset("restarted")] in [step[:1] for step in steps]
    assert steps[-1] == [] or steps[-1] == applied(11)
    assert of.restarts == 1


def test_two_engines_under_one_name_are_not_asked_again_and_again():
    of = following()
    asked = 0
    for tenth in range(100):
        now = tenth / 10
        for number, at in ((tenth, now), (5000 + tenth, now + 0.01)):
            steps = of.live(number, b"", at=1000.0 + at, now=now)
            asked += sum(isinstance(step, Ask) for step in steps)
            assert Apply(b"") in steps or of.catching_up
    assert of.restarts >= 98
    assert asked <= 2
    assert not of.whole
    again = [step for second in range(40, 120) for step in of.tick(float(second))]
    assert again[:1] == [Ask(0)]


def test_a_process_that_started_later_than_what_is_known_drops_it():
    of = following(upto=5)
    assert of.restarted(150.0, 1.0) == [Reset("restarted"), Ask(0)]
    assert of.replay_ended(1.1) == []
    assert of.whole


def test_a_start_that_the_messages_told_already_is_no_news():
    of = following(upto=5)
    live(of, 0, process=1)
    assert of.restarted(150.0, 1.0) == []


def test_a_restart_without_a_time_is_believed():
    of = following(can_ask=False, upto=5)
    assert of.restarted(None, 1.0) == [Reset("restarted")]


def test_after_a_new_connection_only_what_was_missed_is_asked_for():
    of = following(upto=5)
    assert of.joined(9.0) == [Ask(5)]
    assert live(of, 7) == []
    assert replayed(of, 5, 6) == [*applied(5), *applied(6, 7)]


def test_what_is_doubted_is_built_anew_and_stays_until_then():
    of = following(upto=5)
    assert of.doubt(1.0) == [Ask(0)]
    assert replayed(of, *range(5)) == [Reset("rebuilt"), *applied(*range(5))]
    assert (of.replay_ended(1.1), of.whole, of.lost) == ([], True, 0)


def test_what_is_doubted_and_cannot_be_asked_for_is_dropped():
    of = following(can_ask=False, upto=5)
    assert of.doubt(1.0) == [Reset("doubted")]
    assert live(of, 5) == applied(5)
    assert (of.whole, of.reason) == (False, "doubted")


def test_an_engine_that_has_nothing_to_tell_of_what_is_doubted_is_another_one():
    of = following(upto=5)
    of.doubt(1.0)
    assert of.replay_ended(1.1) == [Reset("restarted")]
    assert of.whole


def test_what_is_held_is_bounded():
    of = following(upto=5)
    live(of, 6)
    payload = bytes(sequence.HELD_BYTES // 2)
    assert of.live(7, payload, at=200.0, now=0.0) == []
    steps = of.live(8, payload, at=201.0, now=0.0)
    assert steps == [*applied(6), Apply(payload), Apply(payload)]


def test_a_gap_among_what_is_held_is_asked_for_too():
    of = following(upto=5)
    assert live(of, 6, 8) == [Ask(5)]
    assert replayed(of, 5) == [*applied(5, 6), Ask(7)]
    assert replayed(of, 7) == applied(7, 8)


def test_a_replay_without_the_missing_is_tried_again_and_then_given_up():
    of = following(upto=5)
    live(of, 6)
    assert of.replay_ended(0.1) == [Ask(5)]
    assert of.replay_ended(0.2) == [Ask(5)]
    assert of.replay_ended(0.3) == [Reset("history_lost"), *applied(6)]


def test_a_hole_in_an_answers_midst_is_asked_for_once_more():
    of = Sequence(can_ask=True)
    live(of, 9)
    assert replayed(of, 0, 1, 4) == [*applied(0, 1), Ask(2)]
    assert replayed(of, 2, 3, 4) == applied(2, 3, 4)
    assert replayed(of, 7) == [Ask(5)]
    assert replayed(of, 5, 6, 7, 8) == applied(5, 6, 7, 8, 9)
    assert (of.whole, of.lost) == (True, 0)


def test_what_an_answer_has_not_the_second_time_either_is_lost():
    of = Sequence(can_ask=True)
    live(of, 9)
    assert replayed(of, 0, 1, 4) == [*applied(0, 1), Ask(2)]
    assert replayed(of, 4) == [Reset("history_lost"), *applied(4)]
    assert (of.whole, of.reason, of.lost) == (False, "history_lost", 2)


def test_answers_to_nothing_are_left_out():
    of = following(upto=5)
    assert replayed(of, 5) == []
    assert of.replay_ended(0.1) == []
    assert live(of, 5) == applied(5)


def test_a_question_that_waits_for_its_turn_is_not_taken_for_unanswered():
    of = Sequence(can_ask=True)
    assert of.joined(0.0) == [Ask(0)]
    for tenth in range(100):
        of.queued(tenth / 10)
        assert of.tick(tenth / 10) == []
    assert of.tick(11.8) == []
    assert of.tick(11.9) == [Ask(0)]
