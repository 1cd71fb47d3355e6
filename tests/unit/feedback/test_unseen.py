"""Exchanges that end by hearsay. In: matching, order, reaping. Out: gRPC, Envoy."""

from __future__ import annotations

import msgspec

from epp.clock import ManualClock
from epp.exchange import Exchange
from epp.feedback.entry import LONGEST_ID, MOST, Entry
from epp.feedback.unseen import BROKEN_SECONDS, MAX_AGE, RELEASED, Unseen
from epp.ledger import Ledger
from epp.model import Endpoint, Outcome, Pick, Usage
from epp.pool import Pool
from tests.support import build


class World:
    """One endpoint, one clock, exchanges on demand."""

    def __init__(self) -> None:
        self.clock = ManualClock(100.0)
        self.pool = Pool()
        self.endpoint = build.endpoint("a", queued=None)
        self.pool.put(self.endpoint)
        self.ledger = Ledger()
        self.diary = build.Diary()
        self.unseen = Unseen(self.pool, self.clock)

    def exchange(self, request_id: str = "r-1") -> Exchange:
        request = build.request(id=request_id, prompt_tokens=7)
        exchange = Exchange(
            request,
            Pick((self.endpoint,)),
            (self.diary,),
            [self.ledger.reserve(self.endpoint, 7)],
            clock=self.clock,
            on_error=lambda _observer, error: (_ for _ in ()).throw(error),
        )
        exchange.open()
        return exchange

    @property
    def in_flight(self) -> tuple[int, int]:
        counts = self.ledger.get(self.endpoint.id)
        return counts.requests, counts.tokens

    def scraped(self, *, at: float, running: float) -> None:
        self.pool.set_load(self.endpoint.id, build.load(at=at, running=running))


def done(request_id: str = "r-1", **facts: object) -> Entry:
    known: dict[str, object] = {
        "request_id": request_id, "outcome": Outcome.COMPLETED, "status": 200,
    }  # fmt: skip
    return Entry(**{**known, **facts})  # type: ignore[arg-type]


def test_an_entry_ends_the_exchange_with_what_it_says() -> None:
    world = World()
    world.unseen.adopt(world.exchange())
    assert world.in_flight == (1, 7)
    usage = Usage(prompt_tokens=7, completion_tokens=3, cached_tokens=0)
    world.unseen.entry(done(served="10.0.0.9:8000", response_bytes=12, usage=usage))
    (ending,) = world.diary.endings
    assert (ending.outcome, ending.status, ending.served) == (
        Outcome.COMPLETED, 200, "10.0.0.9:8000",
    )  # fmt: skip
    assert (ending.usage, ending.response_bytes) == (usage, 12)
    assert world.in_flight == (0, 0)
    assert len(world.unseen) == 0


def test_an_id_that_is_no_utf8_is_known_by_what_envoy_makes_of_it() -> None:
    world, header = (
        World(),
        b"a\xff\xe2\x82\xed\xa0\x80b\xc3\xa9".decode("utf-8", "surrogateescape"),
    )
    world.unseen.adopt(world.exchange(header))
    world.unseen.entry(done("a!!!!!!b\u00e9"))
    world.unseen.entry(done("a!!!!!!b\u00e9"))
    world.unseen.adopt(world.exchange(header))
    assert [ending.outcome for ending in world.diary.endings] == [Outcome.COMPLETED] * 2
    assert (len(world.unseen), world.in_flight) == (0, (0, 0))


def test_an_id_that_is_no_utf8_can_be_given_up() -> None:
    world = World()
    world.unseen.adopt(world.exchange("a\udcff"))
    world.pool.remove(world.endpoint.id)
    world.unseen.sweep()
    assert (world.unseen.reaped, len(world.unseen), world.in_flight) == (1, 0, (0, 0))


def test_an_entry_that_overtakes_its_stream_is_kept() -> None:
    world = World()
    exchange = world.exchange()
    world.unseen.entry(done())
    world.unseen.adopt(exchange)
    assert exchange.ended
    assert len(world.unseen) == 0


def test_an_entry_from_before_the_pick_belongs_to_somebody_else() -> None:
    world = World()
    world.unseen.entry(done())
    world.clock.advance(0.5)
    exchange = world.exchange()
    world.unseen.adopt(exchange)
    assert not exchange.ended


def test_duplicates_and_strangers_change_nothing() -> None:
    world = World()
    world.unseen.adopt(world.exchange())
    world.unseen.entry(done("stranger"))
    world.unseen.entry(done())
    world.unseen.entry(done())
    assert len(world.diary.endings) == 1
    assert world.in_flight == (0, 0)


def test_two_requests_of_one_id_need_two_entries() -> None:
    world = World()
    world.unseen.adopt(world.exchange())
    world.unseen.adopt(world.exchange())
    world.unseen.entry(done())
    assert world.in_flight == (1, 7)
    world.unseen.entry(done())
    assert world.in_flight == (0, 0)


def test_of_two_requests_of_one_id_an_entry_ends_the_one_that_went_where_it_says() -> None:
    world = World()
    first = world.exchange()
    world.endpoint = build.endpoint("b", host="10.0.0.2")
    second = world.exchange()
    for exchange in (first, second):
        world.unseen.adopt(exchange)
    world.unseen.entry(done(served="10.0.0.2:8000"))
    assert (first.ended, second.ended) == (False, True)
    world.unseen.entry(done(served="10.0.0.3:8000"))  # a retry elsewhere: nobody else is left
    assert first.ended


def test_many_requests_of_one_id_all_end() -> None:
    world = World()
    for _ in range(300):
        world.unseen.adopt(world.exchange())
    for _ in range(100):
        world.unseen.entry(done())
    world.clock.advance(MAX_AGE + 1)
    world.unseen.sweep()
    assert (len(world.unseen), world.unseen.reaped, world.in_flight) == (0, 200, (0, 0))
    assert len(world.diary.endings) == 300


def test_an_early_entry_that_nobody_claims_is_dropped_and_counted() -> None:
    world = World()
    world.unseen.entry(done("repeated"))
    world.unseen.entry(done("refused"))
    world.clock.advance(3.0)
    world.unseen.entry(done("repeated"))  # takes the place of the one before
    assert world.unseen.unmatched == 1
    world.clock.advance(2.5)
    world.unseen.sweep()
    assert (world.unseen.unmatched, len(world.unseen._early)) == (2, 1)
    world.clock.advance(5.0)
    world.unseen.sweep()
    assert (world.unseen.unmatched, len(world.unseen._early)) == (3, 0)


def test_an_early_entry_of_an_endless_id_is_not_kept() -> None:
    world = World()
    world.unseen.entry(done("x" * LONGEST_ID))
    world.unseen.entry(done("x" * (LONGEST_ID + 1)))
    assert (world.unseen.unmatched, len(world.unseen._early)) == (1, 1)


def test_early_entries_are_bounded() -> None:
    world = World()
    for i in range(MOST + 10):
        world.unseen.entry(done(str(i)))
    assert world.unseen.unmatched == 10


def test_with_a_log_connected_a_busy_engine_keeps_the_exchange_open() -> None:
    world = World()
    world.unseen.log_opened()
    world.unseen.adopt(world.exchange())
    world.scraped(at=200.0, running=1)
    world.unseen.sweep()
    assert len(world.unseen) == 1
    world.scraped(at=201.0, running=0)
    world.unseen.sweep()
    assert (len(world.unseen), world.unseen.reaped) == (0, 1)
    assert world.diary.endings[0].outcome is Outcome.UNKNOWN


def test_without_a_log_the_booking_lives_until_a_scrape_has_seen_the_request() -> None:
    world = World()
    world.unseen.adopt(world.exchange())
    world.scraped(at=100.5, running=4)
    world.unseen.sweep()
    assert world.in_flight == (1, 7)
    world.scraped(at=101.0, running=4)
    world.unseen.sweep()
    assert world.in_flight == (0, 0)


def test_without_a_log_the_exchange_stays_open_for_an_entry_that_comes_late() -> None:
    world = World()
    world.unseen.adopt(world.exchange())
    world.scraped(at=101.0, running=4)
    for _ in range(3):
        world.unseen.sweep()
    assert (len(world.unseen), world.unseen.reaped, world.diary.endings) == (1, 0, [])
    world.unseen.log_opened()
    world.unseen.entry(done())
    assert [ending.outcome for ending in world.diary.endings] == [Outcome.COMPLETED]
    assert world.in_flight == (0, 0)
    assert len(world.unseen) == 0


def test_a_booking_is_not_released_twice() -> None:
    world = World()
    world.unseen.adopt(world.exchange("r-1"))
    world.scraped(at=101.0, running=4)
    world.unseen.sweep()
    world.exchange("r-2")
    world.unseen.sweep()
    world.unseen.entry(done("r-1"))
    assert world.in_flight == (1, 7)


def test_an_empty_engine_is_believed_only_a_while_after_the_pick() -> None:
    world = World()
    world.unseen.log_opened()
    world.unseen.adopt(world.exchange())
    world.scraped(at=104.9, running=0)
    world.unseen.sweep()
    assert (len(world.unseen), world.in_flight) == (1, (1, 7))
    world.scraped(at=105.0, running=0)
    world.unseen.sweep()
    assert (len(world.unseen), world.in_flight) == (0, (0, 0))
    assert world.diary.endings[0].outcome is Outcome.UNKNOWN


def test_a_log_that_broke_has_lost_the_entries_of_what_was_open_then() -> None:
    world = World()
    world.unseen.log_opened()
    world.unseen.adopt(world.exchange("r-1"))
    world.clock.advance(1.0)
    world.unseen.log_closed()
    world.clock.advance(0.5)
    world.unseen.log_opened()
    world.unseen.adopt(world.exchange("r-2"))
    world.scraped(at=110.0, running=4)
    world.unseen.sweep()
    assert world.in_flight == (1, 7)  # of r-2, whose entry will come
    assert len(world.unseen) == 2


def test_without_a_log_the_exchanges_kept_open_are_bounded() -> None:
    world = World()
    for number in range(RELEASED + 3):
        world.unseen.adopt(world.exchange(str(number)))
    world.scraped(at=101.0, running=4)
    world.unseen.sweep()
    assert (len(world.unseen), world.unseen.reaped) == (RELEASED, 3)
    world.unseen.entry(done("2"))
    assert len(world.unseen) == RELEASED  # the oldest went
    world.unseen.entry(done("3"))
    assert len(world.unseen) == RELEASED - 1


def test_a_scrape_that_does_not_tell_is_no_evidence() -> None:
    world = World()
    world.unseen.log_opened()
    world.unseen.adopt(world.exchange())
    world.pool.set_load(world.endpoint.id, build.load(at=200.0, queued=None, running=None))
    world.unseen.sweep()
    assert len(world.unseen) == 1


def test_of_a_busy_engine_that_counts_fewer_for_long_the_oldest_bookings_go() -> None:
    world = World()
    world.unseen.log_opened()
    lost = [world.exchange(f"lost-{number}") for number in range(3)]
    for exchange in lost:
        world.unseen.adopt(exchange)
        world.clock.advance(0.1)
    known = [world.exchange(f"known-{number}") for number in range(2)]
    for exchange in known:
        world.unseen.adopt(exchange)
    for at, running in ((110.0, 2), (115.0, 3), (119.9, 1)):  # at least two too few, at each
        world.scraped(at=at, running=running)
        world.unseen.sweep()
        assert world.in_flight == (5, 35)
    world.scraped(at=120.0, running=2)
    world.unseen.sweep()
    assert world.in_flight == (3, 21)
    assert [exchange.released for exchange in (*lost, *known)] == [True, True, *[False] * 3]
    assert (len(world.unseen), world.unseen.reaped) == (5, 0)  # a late entry still tells the truth
    world.unseen.entry(done("lost-0"))
    world.unseen.entry(done("known-0"))
    assert world.in_flight == (2, 14)


def test_an_engine_that_once_counts_enough_or_nothing_is_believed_anew() -> None:
    for again in ({"running": 2.0}, {"running": None}):
        world = World()
        world.unseen.log_opened()
        for number in range(2):
            world.unseen.adopt(world.exchange(str(number)))
        for at, told in ((110.0, {}), (115.0, again), (116.0, {}), (125.9, {})):
            load = {"queued": 0.0, "running": 1.0, **told}
            world.pool.set_load(world.endpoint.id, build.load(at=at, **load))
            world.unseen.sweep()
        assert world.in_flight == (2, 14)
        world.scraped(at=126.0, running=1)
        world.unseen.sweep()
        assert world.in_flight == (1, 7)


def test_what_a_scrape_cannot_have_seen_is_not_missed_by_it() -> None:
    world = World()
    world.unseen.log_opened()
    for number in range(40):
        world.unseen.adopt(world.exchange(str(number)))
        world.scraped(at=world.clock.now() + 0.5, running=1)
        world.unseen.sweep()
        world.unseen.entry(done(str(number)))
        world.clock.advance(1.0)
        world.unseen.adopt(world.exchange(f"next-{number}"))
        world.unseen.sweep()
        assert world.in_flight == (1, 7)
        world.unseen.entry(done(f"next-{number}"))


def test_an_endpoint_that_is_gone_takes_its_exchanges_along() -> None:
    world = World()
    world.unseen.adopt(world.exchange("r-1"))
    world.unseen.adopt(world.exchange("r-2"))
    world.pool.remove(world.endpoint.id)
    world.unseen.sweep()
    assert len(world.unseen) == 0
    assert len(world.diary.endings) == 2


def broken(world: World) -> None:
    """An answer of which a byte came through us breaks off 3 s after the pick."""
    exchange = world.exchange()
    exchange.response_head(200, streamed=True)
    exchange.response_piece(5)
    world.clock.advance(3)
    exchange.break_off()
    world.unseen.log_opened()
    world.unseen.adopt(exchange)


def test_an_answer_that_broke_off_is_over_and_its_entry_tells_at_whose_end() -> None:
    world = World()
    began = world.clock.now()
    broken(world)
    assert world.in_flight == (0, 0)
    assert not world.diary.endings
    world.clock.advance(1)
    world.unseen.entry(done(outcome=Outcome.FAILED, flags="upstream_connection_termination"))
    (ending,) = world.diary.endings
    assert (ending.outcome, ending.status, ending.streamed) == (Outcome.FAILED, 200, True)
    assert (ending.first_byte_at, ending.at) == (began, began + 3)
    assert ending.flags == "upstream_connection_termination"


def test_without_an_entry_the_client_is_taken_to_have_left_an_answer_that_broke_off() -> None:
    world = World()
    broken(world)
    world.pool.remove(world.endpoint.id)
    world.clock.advance(BROKEN_SECONDS)
    world.unseen.sweep()
    assert not world.diary.endings
    world.clock.advance(0.1)
    world.unseen.sweep()
    assert [each.outcome for each in world.diary.endings] == [Outcome.ABANDONED]
    assert (len(world.unseen), world.unseen.reaped) == (0, 0)


def test_the_first_log_is_waited_for_and_no_other_where_none_came() -> None:
    world = World()
    assert world.unseen.asks_why
    exchange = world.exchange()
    exchange.break_off()
    world.unseen.adopt(exchange)
    world.clock.advance(BROKEN_SECONDS)
    world.unseen.sweep()
    assert world.unseen.asks_why
    world.clock.advance(0.1)
    world.unseen.sweep()
    assert not world.unseen.asks_why
    world.unseen.log_opened()
    assert world.unseen.asks_why
    world.unseen.log_closed()
    assert world.unseen.asks_why  # the gateway may open it again


def test_a_log_that_tells_nothing_of_one_answer_may_tell_of_the_next() -> None:
    world = World()
    broken(world)
    world.clock.advance(BROKEN_SECONDS + 0.1)
    world.unseen.sweep()
    assert world.diary.endings
    assert world.unseen.asks_why


def test_nothing_stays_for_ever() -> None:
    world = World()
    world.unseen.log_opened()
    world.unseen.adopt(world.exchange())
    world.clock.advance(MAX_AGE + 1)
    world.unseen.sweep()
    assert world.in_flight == (0, 0)


def test_the_endpoint_of_the_entry_is_kept_as_served() -> None:
    world = World()
    other: Endpoint = msgspec.structs.replace(world.endpoint, host="10.0.0.9")
    world.unseen.adopt(world.exchange())
    world.unseen.entry(done(served=other.address))
    assert world.diary.endings[0].served == "10.0.0.9:8000"
