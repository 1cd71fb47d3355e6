"""Whatever an access log loses, repeats, reorders or makes up, every request ends once."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from epp.clock import ManualClock
from epp.exchange import Exchange
from epp.feedback.entry import SECONDS as EARLY_SECONDS
from epp.feedback.entry import Entry
from epp.feedback.unseen import EMPTY_AFTER, Unseen
from epp.ledger import Ledger
from epp.model import Outcome, Pick
from epp.pool import Pool
from tests.support import build

ENDPOINTS = [build.endpoint(str(i), host=f"10.0.0.{i}", queued=None) for i in range(3)]
SERVED = ("10.0.0.0:8000", "10.0.0.1:8000", "10.9.9.9:1", "")
IDS = st.sampled_from("abc")  #: few, so that ids are shared
PLACES = st.integers(0, 2)
STEPS = st.one_of(
    st.tuples(st.just("ask"), IDS, PLACES),
    st.tuples(st.just("forward"), IDS, PLACES),
    st.tuples(st.just("stream ends"), st.integers(0, 9), st.just(0)),
    st.tuples(st.just("tell"), IDS, st.integers(0, 3)),  # early, late, twice, or of nobody
    st.tuples(st.just("tell by name"), st.integers(0, 9), st.integers(0, 3)),
    st.tuples(st.just("untaken"), IDS, st.sampled_from((0, 3))),
    st.tuples(st.just("scrape"), st.integers(0, 4), PLACES),
    st.tuples(st.just("restart"), st.just(0), PLACES),
    st.tuples(st.just("wait"), st.integers(1, 20), st.just(0)),
    st.tuples(st.sampled_from(["log opens", "log breaks"]), st.just(0), st.just(0)),
)


class World:
    """A pool of three endpoints, and the requests sent to it."""

    def __init__(self) -> None:
        self.clock, self.pool, self.ledger = ManualClock(100.0), Pool(), Ledger()
        self.pool.on_forget(self.ledger.forget)
        self.diary = build.Diary()
        self.unseen = Unseen(self.pool, self.clock)
        self.asked: list[Exchange] = []
        self.streams: list[Exchange] = []  #: of which the gateway's stream is open
        for endpoint in ENDPOINTS:
            self.pool.put(endpoint)

    def do(self, what: str, which: str | int, place: int) -> None:
        endpoint = ENDPOINTS[place % 3]
        match what:
            case "ask":
                self.unseen.adopt(self.ask(str(which), place))
            case "forward":
                exchange = self.ask(str(which), place)
                self.unseen.name(exchange)
                self.streams.append(exchange)
            case "stream ends" if self.streams:
                self.unseen.adopt(self.streams.pop(int(which) % len(self.streams)))
            case "tell":
                self.unseen.entry(entry(str(which), place))
            case "tell by name" if self.asked:
                exchange = self.asked[int(which) % len(self.asked)]
                others = [each for each in self.asked if not each.ended and each is not exchange]
                self.unseen.entry(entry("", place, exchange.name) if exchange.name else entry("d"))
                assert not any(each.ended for each in others)
            case "untaken":
                left = entry(str(which), place, outcome=Outcome.ABANDONED)
                self.unseen.untaken(left)
            case "scrape":
                load = build.load(at=self.clock.now(), running=int(which))
                self.pool.set_load(endpoint.id, load)
            case "restart":
                self.pool.remove(endpoint.id)
                self.unseen.sweep()
                self.pool.put(endpoint)
            case "wait":
                self.clock.advance(int(which) / 4)
                self.unseen.sweep()
            case "log opens":
                self.unseen.log_opened()
            case "log breaks" if self.unseen.logs_connected:
                self.unseen.log_closed()
            case _:
                pass

    def ask(self, request_id: str, place: int) -> Exchange:
        endpoint = ENDPOINTS[place]
        exchange = Exchange(
            build.request(id=request_id, prompt_tokens=7), Pick((endpoint,)), (self.diary,),
            [self.ledger.reserve(endpoint, 7)], clock=self.clock, on_error=_fail,
        )  # fmt: skip
        exchange.open()
        self.asked.append(exchange)
        return exchange

    def booked(self) -> list[tuple[int, int]]:
        counts = [self.ledger.get(endpoint.id) for endpoint in ENDPOINTS]
        return [(count.requests, count.tokens) for count in counts]


def entry(
    request_id: str, place: int = 3, name: str = "", outcome: Outcome = Outcome.COMPLETED
) -> Entry:
    return Entry(request_id=request_id, name=name, outcome=outcome, served=SERVED[place])


def _fail(_observer: object, error: Exception) -> None:
    raise error


@given(st.lists(STEPS, max_size=60))
@example([("ask", "a", 0), ("ask", "a", 1), ("restart", 0, 0)])  # one of two of an id ends
def test_nothing_leaks_and_no_count_is_ever_below_zero(
    steps: list[tuple[str, str | int, int]],
) -> None:
    world = World()
    for step in steps:
        world.do(*step)
        assert min(min(counts) for counts in world.booked()) >= 0
        kept = {each for same in world.unseen._open.values() for each in same}
        assert kept == {each for each in world.asked if not each.ended} - set(world.streams)
        assert set(world.unseen._named.values()) == {each for each in kept if each.name}
        assert not any(each.ended for each in world.streams)
    for exchange in world.streams:
        world.unseen.adopt(exchange)
    world.clock.advance(EMPTY_AFTER + EARLY_SECONDS)
    for place in range(3):
        world.do("scrape", 0, place)
    world.unseen.sweep()
    assert all(each.ended for each in world.asked)
    assert len(world.diary.endings) == len(world.asked)
    assert world.booked() == [(0, 0)] * 3
    assert not world.unseen._early
