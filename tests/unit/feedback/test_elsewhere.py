"""Entries of other pickers' exchanges, and logs that are open to others. Out: how they are told."""

from __future__ import annotations

import pytest

from epp.feedback.entry import SECONDS, Entry, digest
from epp.feedback.logged import as_logged
from epp.feedback.unseen import ON_ITS_WAY, RUN, SEEN_AFTER, TOLD_AFTER, Unseen
from epp.model import Outcome
from tests.unit.feedback.test_names import named
from tests.unit.feedback.test_unseen import World, done

OURS, THEIRS = "a" * RUN, "b" * RUN


class Replica(World):
    """One of several pickers."""

    def __init__(self, *, told: bool = True) -> None:
        super().__init__()
        self.forwarded: list[Entry] = []

        def forward(entry: Entry) -> bool:
            self.forwarded.append(entry)
            return told

        self.unseen = Unseen(self.pool, self.clock, run=OURS, forward=forward)

    def adopted(self) -> object:
        exchange = self.exchange()
        self.unseen.name(exchange)
        self.unseen.adopt(exchange)
        return exchange


@pytest.mark.parametrize("told", [True, False])
def test_an_entry_of_another_run_is_told_there_or_is_strange(told: bool) -> None:
    replica = Replica(told=told)
    exchange = replica.adopted()
    entry = done(name=f"{THEIRS}{1:012x}")
    replica.unseen.entry(entry)
    assert replica.forwarded == [entry]
    assert replica.unseen.strange == (0 if told else 1)
    assert not exchange.ended  # type: ignore[attr-defined]
    assert len(replica.unseen._early) == 0


def test_own_entries_and_those_of_gateways_that_tell_no_names_are_not_told_to_others() -> None:
    replica = Replica()
    exchange = replica.exchange()
    name = replica.unseen.name(exchange)
    assert name.startswith(OURS)
    replica.unseen.entry(done(name=name))  # before its stream ended
    replica.unseen.entry(done("of an old gateway"))
    replica.unseen.untaken(done("not ours"))
    replica.unseen.adopt(exchange)
    replica.unseen.entry(done(name=name))  # twice
    replica.unseen.entry(done(name=f"{OURS}{99:012x}"))  # never given
    assert exchange.ended
    assert len(replica.diary.endings) == 1
    assert not replica.forwarded
    replica.clock.advance(SECONDS + 0.1)
    replica.unseen.sweep()
    assert replica.unseen.unmatched == 4


def test_who_left_before_a_pick_is_told_of_by_a_hash_of_the_id_and_only_if_the_time_fits() -> None:
    replica = Replica()
    ids = ["old", "new", "other", "\udc80"]  # the last is no UTF-8, and logged otherwise
    exchanges = {}
    for request_id in ids:
        exchanges[request_id] = exchange = named(replica, request_id)
        replica.unseen.adopt(exchange)
        replica.clock.advance(TOLD_AFTER + 1.0 if request_id == "old" else 0.1)
    left = {digest(as_logged(each)): gone(each) for each in ("old", "new", "nobody's", "\udc80")}
    replica.unseen.untaken_elsewhere(left)
    assert [exchanges[each].ended for each in ids] == [False, True, False, True]
    assert [each.outcome for each in replica.diary.endings] == [Outcome.ABANDONED] * 2
    replica.unseen.untaken_elsewhere(left)  # twice
    assert (len(replica.diary.endings), len(replica.unseen), replica.in_flight) == (2, 2, (2, 14))
    late = {digest("other"): gone("other", seconds=ON_ITS_WAY + 0.3)}
    replica.unseen.untaken_elsewhere(late)  # it had the pick by then
    assert not exchanges["other"].ended


def gone(request_id: str, seconds: float = 0.0) -> Entry:
    return done(as_logged(request_id), outcome=Outcome.ABANDONED, status=None, seconds=seconds)


def test_a_log_that_is_open_elsewhere_keeps_bookings_for_its_entries() -> None:
    replica = Replica()
    replica.unseen.logs_of_others(1, lost=False)
    assert replica.unseen.logs_connected == 1
    replica.clock.advance(1.0)
    exchange = replica.adopted()
    replica.clock.advance(SEEN_AFTER + 0.1)
    replica.scraped(at=replica.clock.now(), running=1)
    replica.unseen.sweep()
    assert replica.in_flight == (1, 7)
    replica.unseen.logs_of_others(-1, lost=True)
    replica.unseen.sweep()
    assert replica.in_flight == (0, 0)
    assert not exchange.ended  # type: ignore[attr-defined]


def test_what_was_open_when_a_log_elsewhere_was_lost_is_released_though_another_is_open() -> None:
    replica = Replica()
    replica.unseen.logs_of_others(2, lost=False)
    replica.clock.advance(1.0)
    replica.adopted()
    replica.clock.advance(1.0)
    replica.unseen.logs_of_others(-1, lost=True)
    replica.clock.advance(1.0)
    replica.adopted()  # may yet be told of
    replica.clock.advance(SEEN_AFTER + 0.1)
    replica.scraped(at=replica.clock.now(), running=2)
    replica.unseen.sweep()
    assert replica.in_flight == (1, 7)


def test_why_an_answer_broke_off_is_asked_again_once_a_log_is_open_elsewhere() -> None:
    replica = Replica()
    exchange = replica.exchange()
    exchange.break_off()
    replica.unseen.adopt(exchange)
    replica.clock.advance(10.0)
    replica.unseen.sweep()
    assert not replica.unseen.asks_why
    replica.unseen.logs_of_others(1, lost=False)
    assert replica.unseen.asks_why
    exchange = replica.exchange()
    exchange.break_off()
    replica.unseen.adopt(exchange)
    replica.clock.advance(10.0)
    replica.unseen.sweep()
    assert replica.unseen.asks_why  # one that is open did not tell this time
