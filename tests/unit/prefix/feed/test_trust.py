"""How far what an engine told may be believed, and what its own reports do to that."""

from __future__ import annotations

import pytest

from epp.prefix.feed import audit as audits
from epp.prefix.feed.audit import Audit, Claim, claim
from epp.prefix.feed.sequence import Sequence
from epp.prefix.feed.trust import ANEW_SECONDS, EXPECTED_SECONDS, Confidence, Level, Trust

BLOCK = 16


def heard(*numbers: int, can_ask: bool = True) -> Sequence:
    of = Sequence(can_ask=can_ask)
    for number in numbers:
        of.live(number, b"", at=100.0 + number, now=0.0)
    return of


def confidence(sequence: Sequence | None = None, audit: Audit | None = None) -> Confidence:
    of = Confidence(sequence or heard(0), audit or Audit())
    of.connected = True
    return of


def answers(of: Audit, count: int, *, known: int, cached: int) -> None:
    for _ in range(count):
        of.answered(Claim(1000, known), cached, block=BLOCK)


def test_an_engine_heard_from_its_start_is_known_exactly():
    assert confidence().trust(0.0) == Trust(Level.EXACT)


def test_an_engine_that_was_never_reached_is_not_known():
    of = Confidence(Sequence(can_ask=True), Audit())
    assert of.trust(0.0) == Trust(Level.PRIOR, "not_connected")
    of.connected = True
    assert of.trust(0.0) == Trust(Level.PRIOR, "silent")


def test_own_picks_are_something_to_go_by():
    of = Confidence(Sequence(can_ask=True), Audit())
    of.computed(0.0, told=False)
    assert of.trust(0.0) == Trust(Level.PREDICTED, "not_connected")


def test_b118_an_engine_that_computes_and_tells_nothing_is_noticed():
    """Field problem B118 (ai-dynamo/dynamo#11984): events never came, and nobody said so."""
    of = confidence()
    of.computed(10.0, told=False)
    of.computed(14.0, told=False)
    assert of.trust(14.9).level is Level.EXACT
    assert of.trust(15.0) == Trust(Level.PREDICTED, "no_events")
    assert of.silent_seconds(40.0) == 30.0
    of.told(41.0)
    assert of.trust(60.0).level is Level.EXACT
    assert of.silent_seconds(60.0) == 0.0


def test_an_engine_that_told_before_its_answer_ended_owes_nothing():
    of = confidence()
    of.told(9.0)
    assert of.told_since(9.0)
    assert not of.told_since(9.1)
    of.computed(10.0, told=True)
    assert of.trust(1000.0).level is Level.EXACT


def test_an_idle_engine_owes_nothing():
    of = confidence()
    of.told(0.0)
    assert of.trust(10_000.0).level is Level.EXACT


def test_while_old_messages_are_awaited_knowledge_is_not_exact():
    of = confidence(heard(0, 1, 5))
    of.told(0.0)
    assert of.trust(0.0) == Trust(Level.PREDICTED, "catching_up")


def test_lost_history_is_named():
    of = confidence(heard(7, can_ask=False))
    of.told(0.0)
    assert of.trust(0.0) == Trust(Level.PREDICTED, "not_replayed")


def test_blocks_that_found_no_room_are_named():
    of = confidence()
    of.refused = True
    assert of.trust(0.0).reason == "no_room"


def test_a_few_surprises_are_no_doubt_and_more_are():
    of = Audit()
    answers(of, 2, known=160, cached=0)
    assert of.doubt == ""
    answers(of, 1, known=160, cached=0)
    assert of.doubt == "overestimated"
    assert confidence(audit=of).trust(0.0).reason == "overestimated"
    assert (of.answers, of.over, of.under) == (3, 3, 0)


@pytest.mark.parametrize("cached", [144, 160, 176])
def test_a_block_more_or_less_is_as_expected(cached: int):
    of = Audit()
    answers(of, 20, known=160, cached=cached)
    assert (of.doubt, of.over, of.under) == ("", 0, 0)


def test_good_answers_in_a_row_end_a_doubt():
    of = Audit()
    answers(of, 5, known=0, cached=160)
    assert of.doubt == "underestimated"
    answers(of, audits.GOOD - 1, known=160, cached=160)
    assert of.doubt == "underestimated"
    answers(of, 1, known=160, cached=160)
    assert of.doubt == ""


def test_old_surprises_are_forgotten():
    of = Audit()
    for _ in range(3):
        answers(of, 1, known=160, cached=0)
        answers(of, audits.LAST // 2 - 1, known=160, cached=160)
    assert of.doubt == ""


CLAIM = Claim(1000, 400)


def send(of: Audit, count: int, made: Claim = CLAIM) -> None:
    """Have the engine answer prompts."""
    for _ in range(count):
        of.picked(made)
        of.ended(made, computed=True)


def counted(of: Audit, rounds: int, *, hits: int, others: int = 0, made: Claim = CLAIM) -> None:
    """Between scrapes, five prompts of 1,000 tokens, of which 400 each are known to be cached."""
    of.counted(0.0, 0.0, at=0.0)
    for number in range(1, rounds + 1):
        send(of, 5, made)
        of.counted(number * (5000.0 + others), number * float(hits), at=float(number))


def test_counters_that_agree_raise_no_doubt():
    of = Audit()
    counted(of, 8, hits=2000)
    assert (of.answers, of.over, of.under) == (8, 0, 0)


def test_counters_that_disagree_do():
    of = Audit()
    counted(of, 4, hits=0)
    assert of.over == 4
    assert of.doubt == "overestimated"
    under = Audit()
    counted(under, 4, hits=4000)
    assert under.doubt == "underestimated"


def test_what_was_only_expected_may_be_found_or_not():
    for hits in (2000, 4500):
        of = Audit()
        counted(of, 8, hits=hits, made=Claim(1000, 400, 500))
        assert (of.over, of.under) == (0, 0)
    burst = Audit()
    for cached in (0, 64, 160):
        burst.answered(Claim(1000, 0, 160), cached, block=BLOCK)
    assert (burst.over, burst.under) == (0, 0)
    burst.answered(Claim(1000, 0, 160), 192, block=BLOCK)
    assert burst.under == 1


def test_counters_tell_nothing_where_others_send_traffic_too():
    of = Audit()
    counted(of, 8, hits=0, others=5000)
    assert of.answers == 0


def test_counters_wait_until_open_prompts_matter_little():
    of = Audit()
    of.counted(0.0, 0.0, at=0.0)
    send(of, 5)
    of.picked(CLAIM)  # a thousand tokens that may be counted already
    of.counted(5000.0, 2000.0, at=1.0)
    assert of.answers == 0
    send(of, 5)
    of.counted(10_000.0, 4000.0, at=2.0)
    assert (of.answers, of.over, of.under) == (1, 0, 0)


def test_a_prompt_that_was_never_computed_there_spoils_no_comparison():
    of = Audit()
    of.counted(0.0, 0.0, at=0.0)
    send(of, 5)
    of.picked(CLAIM)
    of.ended(CLAIM, computed=False)
    of.counted(5000.0, 0.0, at=1.0)
    counted(of, 3, hits=2000)
    assert of.over == 0


def test_counters_that_went_back_begin_again():
    of = Audit()
    counted(of, 1, hits=2000)
    of.counted(10.0, 0.0, at=2.0)
    send(of, 5)
    of.counted(5010.0, 2000.0, at=3.0)
    assert (of.answers, of.over, of.under) == (2, 0, 0)


def test_one_scrape_counts_once():
    of = Audit()
    counted(of, 1, hits=2000)
    send(of, 5)
    of.counted(10_000.0, 0.0, at=1.0)
    assert of.answers == 1


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (claim(160, 96, 0, block=16), Claim(160, 96, 0)),
        (claim(160, 160, 0, block=16), Claim(160, 144, 0)),
        (claim(161, 160, 0, block=16), Claim(161, 160, 0)),
        (claim(160, 96, 64, block=16), Claim(160, 96, 48)),
        (claim(128, 128, 0, block=64), Claim(128, 64, 0)),
        (claim(0, 0, 0, block=16), Claim(0, 0, 0)),
    ],
    ids=["a part", "all of it", "a token more", "expected to be all", "large blocks", "nothing"],
)
def test_no_more_is_claimed_than_an_engine_can_confirm(made: Claim, expected: Claim):
    assert made == expected


def test_what_claims_too_much_is_built_anew_ever_less_often():
    audit = Audit()
    of = confidence(audit=audit)
    assert not of.wants_anew(0.0)
    answers(audit, 3, known=160, cached=0)
    assert of.wants_anew(0.0)
    assert not of.wants_anew(0.0)
    answers(audit, 3, known=160, cached=0)
    assert not of.wants_anew(ANEW_SECONDS - 1)
    assert of.wants_anew(ANEW_SECONDS)
    answers(audit, 3, known=160, cached=0)
    assert not of.wants_anew(ANEW_SECONDS * 3 - 1)
    assert of.wants_anew(ANEW_SECONDS * 3)


def test_what_knows_too_little_is_not_built_anew():
    audit = Audit()
    answers(audit, 5, known=0, cached=160)
    assert not confidence(audit=audit).wants_anew(0.0)


def test_picks_are_believed_for_longer_where_events_are_not():
    assert EXPECTED_SECONDS[Level.EXACT] < EXPECTED_SECONDS[Level.PREDICTED]
