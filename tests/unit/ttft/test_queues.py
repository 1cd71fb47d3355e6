"""What waits on every endpoint: our own work, others' by the last scrape, less what time took."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.ledger import Ledger, Reservation
from epp.model import CacheCounts, CacheInfo, Endpoint, EndpointId
from epp.ttft.backlog import STEP
from epp.ttft.queues import LEFT, MEAN, Queues
from epp.ttft.work import weight
from tests.support import build

SPEED = 0.001  #: seconds for one token of work


class World:
    def __init__(self, *names: str) -> None:
        self.ledger = Ledger()
        self.queues = Queues(self.ledger)
        self.endpoints = tuple(build.endpoint(name) for name in names or ("a",))
        self.see()

    def see(self, now: float = 0.0) -> Any:
        return self.queues.see(self.endpoints, SPEED, now)

    def queue(self, now: float = 0.0) -> list[float]:
        found: list[float] = self.see(now).queue.tolist()
        return found

    def send(
        self, name: str, request: str, *, now: float = 0.0, work: int = 1000, leg: bool = False
    ) -> Reservation:
        """Ask and book, as the router does."""
        self.queues.send(EndpointId(name), work, prompt=work, request=request, now=now)
        endpoint = next(each for each in self.endpoints if each.id == name)
        return self.ledger.reserve(endpoint, work, request=request, leg=leg)

    def scrape(self, name: str, at: float, **load: Any) -> None:
        self.endpoints = tuple(
            msgspec.structs.replace(each, load=build.load(at=at, **load))
            if each.id == name
            else each
            for each in self.endpoints
        )


def test_what_was_sent_waits_until_its_time_is_over() -> None:
    world = World("a", "b")
    world.send("a", "one")
    world.send("a", "two", work=500)
    assert world.queue(0.0) == [1500, 0]
    assert world.queue(0.4) == pytest.approx([1100, 0])
    assert world.queue(9.0) == [0, 0]


def test_where_first_bytes_are_seen_nothing_is_over_before() -> None:
    world = World()
    first, _ = world.send("a", "one"), world.send("a", "two")
    first.release_tokens()
    # The other one began when the first was seen to be done, and has taken 0.3 s of its second.
    assert world.queue(2.0) == [1000]
    assert world.queue(2.3) == pytest.approx([700])
    assert world.queue(60.0) == pytest.approx([1000 * LEFT])


def test_a_booking_that_came_and_went_between_two_looks_is_gone() -> None:
    world = World()
    world.send("a", "one").release()
    assert world.queue(0.0) == [0]


def test_requests_of_others_wait_by_the_scrapes_word() -> None:
    world = World("a", "b")
    world.scrape("a", 1.0, queued=3, running=8)
    # Three of mean work, and two more that the engine has begun with.
    assert world.queue(1.0) == [5 * MEAN, 0]
    assert world.queues.share == 0.0
    assert world.queue(2.0) == pytest.approx([5 * MEAN - 1000, 0])


def test_our_own_requests_in_a_scraped_queue_are_not_counted_twice() -> None:
    world = World()
    reservations = [world.send("a", str(n)) for n in range(3)]
    reservations[0].release_tokens()  # its answer runs, the other two wait
    world.queue(0.0)
    world.scrape("a", 0.0, queued=2, running=1)
    assert world.queue(0.0) == [2000]
    assert world.queues.share == 1.0


def test_a_long_prompt_of_others_that_an_engine_counts_is_work_though_nobody_waits() -> None:
    world = World("a", "b")
    world.scrape("a", 1.0, running=8, counts=CacheCounts(0, 0, admitted=True))
    world.see(1.0)
    world.scrape("a", 1.5, running=8, counts=CacheCounts(100_000, 20_000, admitted=True))
    left = 80_000 - STEP
    work = left * weight(left, 100_000)
    assert world.queue(1.5) == pytest.approx([work, 0])
    assert world.queue(2.5) == pytest.approx([work - 1000, 0])


def test_our_own_prompt_that_an_engine_counts_is_not_counted_twice() -> None:
    world = World()
    world.scrape("a", 1.0, running=0, counts=CacheCounts(0, 0, admitted=True))
    world.see(1.0)
    world.send("a", "long", now=1.0, work=300_000)
    world.scrape("a", 1.5, running=1, counts=CacheCounts(100_000, 0, admitted=True))
    assert world.queue(1.5) == pytest.approx([300_000 - 500])


def test_of_those_who_wait_where_an_engine_counts_only_their_number_is_known() -> None:
    world = World()
    world.scrape("a", 1.0, queued=3, running=8, counts=CacheCounts(0, 0, admitted=True))
    assert world.queue(1.0) == [3 * MEAN]


def test_what_was_booked_before_anybody_looked_is_part_of_our_share() -> None:
    world = World()
    for name in ("one", "two", "three"):
        world.send("a", name)
    world.scrape("a", 0.0, queued=2, running=2)
    world.see(0.0)
    assert world.queues.share == 0.75


def test_what_is_not_told_is_not_a_number() -> None:
    world = World("a", "b")
    world.scrape("a", 1.0, queued=None, kv_usage=None)
    seen = world.see(1.0)
    assert not seen.whole
    assert np.isnan(seen.queue[0])
    assert np.isnan(seen.kv[0])
    assert seen.own[0] == 0.0
    world.endpoints = (msgspec.structs.replace(world.endpoints[0], load=None), world.endpoints[1])
    assert np.isnan(world.see(2.0).running[0])


def test_a_speed_that_was_taught_makes_its_facts_whole() -> None:
    world = World("a", "b")
    assert np.isnan(world.see().per_token).all()
    world.queues.teach(EndpointId("a"), 2.0, 0.1)
    world.queues.teach(EndpointId("b"), 1.0, 0.0)
    seen = world.see()
    assert seen.whole
    assert seen.per_token.tolist() == pytest.approx([0.002, 0.001])
    assert seen.rest.tolist() == [0.1, 0.0]


def test_prompts_sent_since_the_scrape_fill_the_cache() -> None:
    world = World()
    world.scrape("a", 1.0, cache=CacheInfo(16, 50_000))
    world.queue(1.0)
    world.send("a", "one", now=1.0)
    seen = world.see(1.0)
    assert (seen.sent * seen.room).tolist() == [0.02]
    world.scrape("a", 2.0, cache=CacheInfo(16, 50_000))
    assert world.see(2.0).sent.tolist() == [0.0]


def test_an_endpoint_that_is_forgotten_leaves_nothing_to_the_next() -> None:
    world = World("a", "b")
    world.send("a", "one")
    world.queues.teach(EndpointId("a"), 4.0, 1.0)
    world.queues.forget(EndpointId("a"))
    world.endpoints = tuple(build.endpoint(name) for name in ("b", "c"))
    seen = world.see()
    assert seen.queue.tolist() == [0.0, 0.0]
    assert np.isnan(seen.per_token[1])


def test_those_that_come_take_the_places_of_those_that_went_and_of_nobody_else() -> None:
    world = World("a", "b")
    for number in range(50):
        world.queues.forget(world.endpoints[0].id)
        stays, comes = world.endpoints[1], build.endpoint(f"p{number}")
        world.endpoints = (stays, comes)
        world.see(float(number))
        world.send(stays.name, f"r-{number}", now=float(number)).release()
        world.send(comes.name, f"s-{number}", now=float(number))
        assert world.queue(float(number)) == [1000 * (number > 0), 1000]
        world.ledger.forget(stays.id)
    assert world.queues._facts.shape[1] == 16  # as at the beginning


def test_what_nobody_looks_at_does_not_grow() -> None:
    """As it is where another policy chooses: picks are noted, and only the chosen is asked for."""
    world = World("a", "b")
    kept = []
    for number in range(300):
        name = "ab"[number % 2]
        world.scrape(name, float(number), queued=0)
        world.queues.backlog(EndpointId(name), float(number))
        reservation = world.send(name, f"r-{number}", now=float(number))
        if number % 3:
            reservation.release_tokens()
        world.queues.queue(world.endpoints[number % 2], SPEED, float(number))
        reservation.release()
        world.queues.backlog(EndpointId(name), float(number))
        kept.append(size_of(world.queues))
    assert max(kept) == max(kept[:10])
    for name in "ab":
        world.queues.forget(EndpointId(name))
    world.queues.see((), SPEED, 300.0)
    assert world.queues._changed == []  # nothing of theirs waits to be written


def size_of(queues: Queues) -> int:
    """How much is remembered, in items of all its containers and of its rows' backlogs."""
    own = sum(len(each) for each in vars(queues).values() if isinstance(each, (list, dict, set)))
    return own + sum(len(row.backlog) for row in queues._rows.values())


def test_a_thousand_endpoints_have_a_place_each() -> None:
    world = World(*(f"p{n}" for n in range(1000)))
    world.send("p777", "one")
    assert np.flatnonzero(world.queue()).tolist() == [777]


moves = st.lists(
    st.tuples(
        st.sampled_from(["send", "first", "end", "scrape", "swap"]),
        st.integers(0, 3),
        st.integers(0, 9),
    ),
    max_size=30,
)


@settings(max_examples=25, deadline=None)
@given(moves)
def test_one_endpoint_asked_for_alone_is_as_it_is_among_all(
    steps: list[tuple[str, int, int]],
) -> None:
    world, open_, now = World("a", "b", "c", "d"), [], 0.0
    for number, (what, which, amount) in enumerate(steps):
        now += 0.05 * amount
        name = world.endpoints[which].name
        if what == "send":
            open_.append(world.send(name, f"r-{number}", now=now, work=100 * amount))
        elif what == "scrape":
            world.scrape(name, now, queued=amount, running=2)
        elif what == "swap":
            world.endpoints = world.endpoints[::-1]
        elif open_:
            reservation = open_.pop(amount % len(open_))
            reservation.release_tokens() if what == "first" else reservation.release()
        seen = world.see(now)
        for place, endpoint in enumerate(world.endpoints):
            alone = world.queues.queue(endpoint, SPEED, now)
            assert alone == pytest.approx(seen.queue[place])
            assert alone >= 0.0


def test_the_tuple_of_a_pool_that_did_not_change_is_read_once() -> None:
    world = World("a", "b")
    first, second = world.see(), world.see()
    assert first.ids is second.ids
    reversed_: tuple[Endpoint, ...] = world.endpoints[::-1]
    assert world.queues.see(reversed_, SPEED, 0.0).ids == ["b", "a"]


def test_where_only_prefills_are_sent_their_ends_say_what_waits_and_not_what_is_scraped() -> None:
    """An engine says at a step's end who waits: those that came meanwhile it has not seen."""
    world = World()
    legs = [world.send("a", str(number), work=20_000, leg=True) for number in range(3)]
    legs[0].end_leg()
    world.scrape("a", 1.0, queued=0.0, running=1.0)
    assert world.queue(1.0) == [40_000]  # since the first one was seen to be done
