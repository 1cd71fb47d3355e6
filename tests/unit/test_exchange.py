"""One exchange: which word about an answer counts, and where its booking is."""

from __future__ import annotations

from epp.clock import ManualClock
from epp.exchange import Exchange, Told
from epp.ledger import Ledger, Reservation
from epp.model import Ending, Endpoint, InferenceRequest, Outcome, Pick, PrefillLeg, Usage
from tests.support import build

FIRST = build.endpoint("first", host="10.0.0.1")
SECOND = build.endpoint("second", host="10.0.0.2")


class World:
    """A request that arrived at 100.0 and was picked at 100.5."""

    def __init__(self) -> None:
        self.clock = ManualClock(100.5)
        self.ledger = Ledger()
        self.diary = build.Diary()
        request = build.request(arrived_at=100.0, prompt_tokens=7)
        self.exchange = Exchange(
            request,
            Pick((FIRST, SECOND)),
            (self.diary,),
            [self._book(request, FIRST)],
            clock=self.clock,
            on_error=lambda _observer, error: (_ for _ in ()).throw(error),
            book=self._book,
        )
        self.exchange.open()

    def _book(self, request: InferenceRequest, endpoint: Endpoint) -> Reservation:
        return self.ledger.reserve(endpoint, request.uncached_tokens(endpoint.id))

    def in_flight(self) -> list[tuple[int, int]]:
        counts = [self.ledger.get(endpoint.id) for endpoint in (FIRST, SECOND)]
        return [(each.requests, each.tokens) for each in counts]

    def end(self) -> Ending:
        self.exchange.end(Outcome.COMPLETED)
        (ending,) = self.diary.endings
        return ending


# --- what the gateway tells -------------------------------------------------------------


def test_what_the_gateway_tells_is_put_on_our_clock() -> None:
    world = World()
    world.clock.advance(9.5)  # the entry comes at 110, the answer ended at 104
    world.exchange.told(
        Told(
            response_bytes=12, usage=Usage(7, 3, 0), first_byte_seconds=1.25, seconds=4.0,
            streamed=True, attempts=2, flags="response_timeout",
        )
    )  # fmt: skip
    ending = world.end()
    assert (ending.picked_at, ending.first_byte_at, ending.at) == (100.5, 101.25, 104.0)
    assert (ending.usage, ending.response_bytes, ending.streamed) == (Usage(7, 3, 0), 12, True)
    assert (ending.attempts, ending.flags) == (2, "response_timeout")


def test_times_stay_between_the_pick_and_the_moment_they_are_told() -> None:
    world = World()
    world.clock.advance(1.0)
    world.exchange.told(Told(first_byte_seconds=0.25, seconds=60.0))
    ending = world.end()
    assert (ending.first_byte_at, ending.at) == (100.5, 101.5)


def test_what_the_gateway_does_not_tell_stays_unknown() -> None:
    world = World()
    world.clock.advance(1.0)
    world.exchange.told(Told())
    ending = world.end()
    assert (ending.first_byte_at, ending.at, ending.usage) == (None, 101.5, None)


# --- the booking --------------------------------------------------------------------------


def test_the_booking_follows_to_the_fallback_that_serves() -> None:
    world = World()
    assert world.in_flight() == [(1, 7), (0, 0)]
    world.exchange.response_head(200, streamed=True, served=SECOND.address)
    assert world.in_flight() == [(0, 0), (1, 7)]
    world.exchange.response_head(200, streamed=True, served=SECOND.address)
    assert world.in_flight() == [(0, 0), (1, 7)]
    world.exchange.response_piece(1)
    assert world.in_flight() == [(0, 0), (1, 0)]
    world.end()
    assert world.in_flight() == [(0, 0), (0, 0)]


def test_a_fallback_is_not_booked_for_a_prompt_that_was_computed_elsewhere() -> None:
    for leg, tokens in ((None, 0), (PrefillLeg(None, "failed", 100.5), 7)):
        world = World()
        world.exchange.pick = Pick((FIRST, SECOND), prefill=build.endpoint("elsewhere"))
        if leg is not None:
            world.exchange.prefilled(leg)
        world.exchange.response_head(200, streamed=True, served=SECOND.address)
        assert world.in_flight() == [(0, 0), (1, tokens)]


def test_the_booking_stays_where_it_is_if_the_first_choice_serves_or_a_stranger() -> None:
    for served in ("", FIRST.address, "10.9.9.9:1"):
        world = World()
        world.exchange.response_head(200, streamed=False, served=served)
        assert world.in_flight() == [(1, 7), (0, 0)]


def test_only_who_runs_a_prefill_knows_its_end() -> None:
    """A sidecar's leg is over before the first byte, which of an answer in one piece is the last."""
    for told in (True, False):
        world = World()
        leg = world.ledger.reserve(SECOND, 7, leg=True)
        world.exchange._reservations = (*world.exchange._reservations, leg)
        if told:
            world.exchange.prefilled(PrefillLeg(SECOND, "", 101.0, 0.5))
        else:
            world.exchange.response_piece(1)
        assert world.in_flight()[1] == (0, 0)
        assert world.ledger.get(SECOND.id).told is told
