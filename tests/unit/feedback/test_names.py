"""Whose an entry is. In: names, ids that are shared or used again. Out: what else ends exchanges."""

from __future__ import annotations

import pytest
from msgspec import structs

from epp.exchange import Exchange
from epp.feedback.entry import SECONDS, Entry
from epp.feedback.unseen import ON_ITS_WAY, TOLD_AFTER
from epp.model import Outcome
from tests.unit.feedback.test_unseen import World, done

LEFT = {
    "outcome": Outcome.ABANDONED,
    "status": None,
}  #: a client that left before an endpoint served


def named(world: World, request_id: str = "r-1") -> Exchange:
    """An exchange whose name is on its way to the gateway."""
    exchange = world.exchange(request_id)
    exchange.request = structs.replace(exchange.request, arrived_at=world.clock.now())
    world.unseen.name(exchange)
    return exchange


def adopted(world: World, request_id: str = "r-1") -> Exchange:
    exchange = named(world, request_id)
    world.unseen.adopt(exchange)
    return exchange


def broken(world: World) -> Exchange:
    """A request of which we saw no answer when its stream broke."""
    exchange = named(world)
    exchange.break_off()
    return exchange


def of(exchange: Exchange, **facts: object) -> Entry:
    """The entry of a gateway that tells names."""
    return done(exchange.request.id, name=exchange.name, **facts)


def test_of_two_requests_of_one_id_on_one_endpoint_an_entry_ends_the_one_it_names() -> None:
    world = World()
    first, second = adopted(world), adopted(world)
    world.unseen.entry(of(second, outcome=Outcome.FAILED, status=503, served="10.0.0.1:8000"))
    assert (first.ended, second.ended) == (False, True)
    world.unseen.entry(of(first, served="10.0.0.1:8000"))
    told = [(each.outcome, each.status) for each in world.diary.endings]
    assert told == [(Outcome.FAILED, 503), (Outcome.COMPLETED, 200)]
    assert (len(world.unseen), world.in_flight) == (0, (0, 0))


def test_an_entry_with_a_name_needs_no_id() -> None:
    world = World()
    exchange = adopted(world, "what the client sent")
    world.unseen.entry(done("what a filter made of it", name=exchange.name))
    assert exchange.ended


def test_a_late_entry_does_not_end_the_next_request_of_its_id() -> None:
    world = World()
    first = named(world)
    first.response_head(503, streamed=False)
    first.complete()  # in stock mode its answer passed through us
    second = adopted(world)
    world.unseen.entry(of(first, outcome=Outcome.FAILED, status=503))
    assert not second.ended
    third = named(world)
    world.unseen.entry(of(first, outcome=Outcome.FAILED, status=503))
    world.unseen.adopt(third)
    assert not third.ended
    world.clock.advance(SECONDS + 0.1)
    world.unseen.sweep()
    assert world.unseen.unmatched == 2


def test_an_entry_that_comes_twice_ends_once() -> None:
    world = World()
    first, second = adopted(world), adopted(world)
    for _ in range(3):
        world.unseen.entry(of(first))
    assert (first.ended, second.ended, len(world.diary.endings)) == (True, False, 1)
    assert world.in_flight == (1, 7)


def test_entries_that_overtake_their_streams_are_each_their_own() -> None:
    world = World()
    first, second = named(world), named(world)
    world.unseen.entry(of(second, status=202))
    world.unseen.entry(of(first, status=201))
    assert not world.diary.endings  # their streams are open
    world.clock.advance(1.0)
    for exchange in (first, second):
        world.unseen.adopt(exchange)
    assert [each.status for each in world.diary.endings] == [201, 202]
    assert (len(world.unseen), world.unseen.unmatched) == (0, 0)


def test_an_entry_that_overtook_and_comes_again_ends_nothing_else() -> None:
    world = World()
    first = named(world)
    world.unseen.entry(of(first))
    world.unseen.entry(of(first))
    world.unseen.adopt(first)
    world.unseen.entry(of(first))
    second = adopted(world)
    assert (first.ended, second.ended, len(world.diary.endings)) == (True, False, 1)


def test_an_id_that_is_another_request_s_name_is_only_an_id() -> None:
    world = World()
    victim = adopted(world)
    forger = adopted(world, victim.name)
    world.unseen.entry(done(victim.name))  # of a gateway that tells ids only
    assert (victim.ended, forger.ended) == (False, True)
    world.unseen.entry(done(victim.name))
    again = named(world, victim.name)
    world.unseen.entry(done("r-1", name=f"{victim.name}0"))
    world.unseen.adopt(again)
    assert not victim.ended


def test_a_name_of_another_process_is_of_nobody_here() -> None:
    world, other = World(), World()
    exchange = adopted(world)
    world.unseen.entry(done(name=other.unseen.name(other.exchange())))
    assert not exchange.ended
    assert world.unseen.unmatched == 1
    later = named(world)
    world.unseen.adopt(later)
    assert not later.ended


def test_every_exchange_has_a_name_of_its_own() -> None:
    worlds = World(), World()
    names = [named(world).name for world in worlds for _ in range(100)]
    assert len(set(names)) == len(names)
    assert all(name.isascii() and len(name) < 100 for name in names)


def test_a_gateway_that_tells_no_names_ends_by_id() -> None:
    world = World()
    exchange = adopted(world)
    world.unseen.entry(done())
    assert exchange.ended
    early = named(world)
    world.unseen.entry(done())
    world.unseen.adopt(early)
    assert early.ended


def test_what_is_given_up_is_forgotten_by_name_too() -> None:
    world = World()
    exchange = adopted(world)
    world.pool.remove(world.endpoint.id)
    world.unseen.sweep()
    world.unseen.entry(of(exchange))
    assert (len(world.unseen), len(world.diary.endings)) == (0, 1)
    assert not world.unseen._named


# --- entries without a name, of a log that tells names -----------------------------------------


def test_a_request_that_did_not_come_to_us_ends_none_that_has_its_id() -> None:
    world = World()
    exchange = adopted(world)
    world.unseen.untaken(done(outcome=Outcome.FAILED, status=401))
    world.unseen.untaken(done(served="10.0.0.7:80"))
    world.unseen.untaken(done(served="10.0.0.7:80", **LEFT))
    assert not exchange.ended
    assert world.unseen.unmatched == 3


def test_a_client_that_left_before_its_pick_came_ends_its_request_the_newest() -> None:
    world = World()
    older, newer = adopted(world), adopted(world)
    world.unseen.untaken(done(seconds=0.01, **LEFT))
    assert (older.ended, newer.ended) == (False, True)
    assert world.diary.endings[0].outcome is Outcome.ABANDONED


def test_a_client_that_left_when_the_gateway_surely_had_the_pick_left_another_request() -> None:
    world = World()
    exchange = adopted(world)
    world.clock.advance(ON_ITS_WAY + 0.1)
    world.unseen.untaken(done(seconds=ON_ITS_WAY + 0.1, **LEFT))
    assert (exchange.ended, world.unseen.unmatched) == (False, 1)
    world.unseen.untaken(done(seconds=ON_ITS_WAY - 0.1, **LEFT))
    assert exchange.ended


def test_a_request_that_was_picked_for_long_ago_had_its_pick() -> None:
    world = World()
    exchange = adopted(world)
    world.clock.advance(TOLD_AFTER + 0.1)
    world.unseen.untaken(done(seconds=0.01, **LEFT))
    assert (exchange.ended, world.unseen.unmatched) == (False, 1)


def test_an_answer_that_broke_off_waits_for_its_own_entry() -> None:
    world = World()
    exchange = broken(world)
    world.unseen.adopt(exchange)
    world.unseen.untaken(done(seconds=0.01, **LEFT))
    assert not exchange.ended
    world.unseen.entry(of(exchange, outcome=Outcome.FAILED, status=504))
    assert world.diary.endings[0].status == 504


def test_who_left_before_any_pick_is_not_waited_for() -> None:
    world = World()
    exchange = named(world)
    world.unseen.untaken(done(seconds=0.01, **LEFT))
    world.unseen.adopt(exchange)
    assert (exchange.ended, world.unseen.unmatched) == (False, 1)


# --- answers that broke off, by a gateway that tells ids only ----------------------------------


@pytest.mark.parametrize("early", [True, False])
def test_an_entry_with_another_status_than_we_saw_is_not_of_the_answer_that_broke_off(
    early: bool,
) -> None:
    world = World()
    exchange = broken(world)
    failure = done(outcome=Outcome.FAILED, status=503)
    if early:
        world.unseen.entry(failure)
    world.unseen.adopt(exchange)
    if not early:
        world.unseen.entry(failure)
    assert not exchange.ended
    world.unseen.entry(done(**LEFT))
    assert [(each.outcome, each.status) for each in world.diary.endings] == [
        (Outcome.ABANDONED, None)
    ]


def test_a_name_is_believed_whatever_the_status() -> None:
    world = World()
    exchange = broken(world)
    world.unseen.adopt(exchange)
    world.unseen.entry(of(exchange, outcome=Outcome.FAILED, status=504))
    assert world.diary.endings[0].status == 504
