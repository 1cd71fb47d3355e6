"""``precise-prefix-cache-producer``: which rank of an engine a request is sent to."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from epp.clock import ManualClock
from epp.collect.kv.feed import Feed
from epp.collect.parse.kv_messages import END, Message
from epp.ledger import Ledger
from epp.model import Ending, Endpoint, EndpointId, InferenceRequest, Outcome, Pick, Tokens, Usage
from epp.plugin import RequestHeaderAdder, Tools
from epp.prefix.feed.trust import Level, Trust
from epp.prefix.precise import PrecisePrefixCacheProducer
from tests.support.kv import packed

A, B = (Endpoint(EndpointId(name), name, 80) for name in "ab")
IDS = list(range(1000, 1160))  # ten blocks
RANK = "x-data-parallel-rank"


class Case:
    """A producer whose clock stands still."""

    def __init__(self, **params: Any) -> None:
        self.ledger = Ledger()
        self.feeds: dict[tuple[EndpointId, int], Feed] = {}
        self.made = PrecisePrefixCacheProducer(
            msgspec.convert(params, PrecisePrefixCacheProducer.Params),
            Tools(ManualClock(100.0), random.Random(1), self.ledger),
        )

    def tell(self, endpoint: Endpoint, **blocks: int) -> None:
        """Have ranks ``r0``, ``r1``, ... of an endpoint hold so many of the first blocks of `IDS`."""
        for name, count in blocks.items():
            rank = int(name[1:])
            engine = self.made.engines.add(endpoint.id, rank, can_ask=True)
            feed = self.feeds[endpoint.id, rank] = Feed(engine, self.made.index)
            feed.connected(100.0)
            feed.answered(Message("", END, b""), 100.0)
            ids = IDS[: count * 16]
            event = ["BlockStored", list(range(1, count + 1)), None, ids, 16, None, "GPU"]
            payload = msgspec.msgpack.encode([1.0, [event] if count else [], rank])
            feed.heard(Message("", 0, payload), 100.0, 100.0)
            while feed.busy:
                feed.advance()

    def ask(self, name: str = "r", blocks: int = 10) -> InferenceRequest:
        tokens = Tokens(packed(IDS[: blocks * 16]), blocks * 16, "local")
        return self.made.enrich(
            InferenceRequest(name, {}, b"{}", prompt=b"x" * 640, tokens=tokens), (A, B)
        )

    def rank(self, *endpoints: Endpoint, **more: Any) -> str | None:
        """Return what a request that goes to ``endpoints`` is told."""
        made = self.made.request_headers(self.ask(), Pick(endpoints or (A,), **more))
        return made.get(RANK)


def test_the_rank_that_told_most_of_the_prompt_is_named() -> None:
    case = Case()
    assert isinstance(case.made, RequestHeaderAdder)
    case.tell(A, r0=2, r1=5)
    assert case.rank() == "1"


@pytest.mark.parametrize(
    ("ranks", "more"),
    [
        pytest.param({"r0": 5}, {}, id="there is one only"),
        pytest.param({"r0": 5, "r1": 5}, {}, id="all hold as much"),
        pytest.param({"r0": 0, "r1": 0}, {}, id="none holds any"),
        pytest.param({"r8": 0, "r9": 5}, {}, id="those of another pod are counted in, or unknown"),
        pytest.param({"r0": 0, "r1": 5}, {"prefill": B}, id="the prompt is computed elsewhere"),
        pytest.param({"r0": 0, "r1": 5}, {"encode": (B,)}, id="images are encoded elsewhere"),
    ],
)
def test_the_engine_chooses_its_rank_where(ranks: dict[str, int], more: dict[str, Any]) -> None:
    case = Case()
    case.tell(A, **ranks)
    assert case.rank(**more) is None


def test_no_rank_is_named_if_that_is_turned_off_or_no_tokens_are_known() -> None:
    off = Case(rankHeader=False)
    off.tell(A, r0=0, r1=5)
    assert off.rank() is None
    case = Case()
    case.tell(A, r0=0, r1=5)
    plain = InferenceRequest("r", {}, b"{}", prompt=b"x" * 640)
    assert case.made.request_headers(case.made.enrich(plain, (A,)), Pick((A,))) == {}


def test_a_rank_that_is_not_heard_any_more_may_be_gone() -> None:
    case = Case()
    case.tell(A, r0=0, r1=5)
    case.feeds[A.id, 1].disconnected()
    assert case.rank() is None


def test_no_rank_is_named_that_a_fallback_would_refuse() -> None:
    case = Case()
    case.tell(A, r0=0, r1=1, r2=5)
    case.tell(B, r0=0, r1=0)
    assert case.rank(A, B) is None
    case.tell(B, r2=0)
    assert case.rank(A, B) == "2"


def test_what_a_request_will_bring_is_expected_of_the_rank_that_it_is_sent_to() -> None:
    case = Case()
    case.tell(A, r0=3, r1=5)
    sent = Pick((A,), headers={RANK: "0"})
    request = case.ask()
    case.made.picked(request, sent)
    match = case.ask().match()
    assert match is not None
    assert dict(match.held) == {A.id: 10}
    assert case.rank() == "1"  # what is expected only is no reason to go there
    case.made.ended(request, sent, Ending(Outcome.COMPLETED, 101.0))


def test_answers_of_a_rank_that_was_named_are_held_against_what_it_told() -> None:
    case = Case()
    case.tell(A, r0=0, r1=5)
    for cached in (0, 0, 0):
        request = case.ask()
        sent = Pick((A,), headers=dict(case.made.request_headers(request, Pick((A,)))))
        case.made.picked(request, sent)
        usage = Usage(prompt_tokens=160, cached_tokens=cached)
        case.made.ended(request, sent, Ending(Outcome.COMPLETED, 101.0, usage=usage))
    assert case.made.trust(A.id, 1) == Trust(Level.PREDICTED, "overestimated")
    assert case.made.trust(A.id, 0).level is Level.EXACT
    unnamed = Pick((A,))
    for request in (case.ask(), case.ask(), case.ask()):
        case.made.picked(request, unnamed)
        usage = Usage(prompt_tokens=160, cached_tokens=0)  # of whatever rank
        case.made.ended(request, unnamed, Ending(Outcome.COMPLETED, 101.0, usage=usage))
    assert case.made.trust(A.id, 0).level is Level.EXACT


def test_requests_under_way_fill_a_rank_until_they_are_over() -> None:
    case = Case()
    case.tell(A, r0=0, r1=5)
    picks = []
    for number in range(4):
        request = case.ask(f"r{number}")
        pick = Pick((A,), headers=dict(case.made.request_headers(request, Pick((A,)))))
        assert pick.headers == {RANK: "1"}
        case.made.picked(request, pick)
        picks.append((request, pick))
        case.ledger.reserve(A, 0)
    assert case.rank() is None
    case.made.ended(*picks[0], Ending(Outcome.COMPLETED, 101.0))
    assert case.rank() == "1"
    assert case.made.dump_state()["sentToOneRank"] == 4
