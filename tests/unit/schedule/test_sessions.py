"""Session affinity: the token in the header, and the memory by session id."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import pytest

from epp import plugin
from epp.clock import ManualClock
from epp.model import Pick
from epp.schedule import sessions
from epp.schedule.filters.session import SessionAffinityFilter
from epp.schedule.scorers.affinity import SessionAffinityScorer
from tests.support import build

A, B, C = (build.endpoint(name) for name in "abc")


def make(clock: ManualClock | None = None, cls: Any = SessionAffinityFilter, **params: Any) -> Any:
    return cls(msgspec.convert(params, cls.Params), build.tools(clock=clock))


def by_id(clock: ManualClock | None = None, **config: Any) -> Any:
    return make(clock, strategy="session_id", sessionIdConfig=config)


def token(text: str) -> dict[str, str]:
    return {"x-session-token": base64.b64encode(text.encode()).decode()}


def test_the_answer_names_the_endpoint_and_the_next_request_goes_there() -> None:
    chosen = make()
    assert isinstance(chosen, plugin.AnswerHeaderAdder)
    sent = chosen.answer_headers(build.request(), build.pick("b"), "")
    assert sent == token("default/b")
    assert chosen.filter(build.request(headers=sent), [A, B, C]) == [B]


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param({}, id="none"),
        pytest.param(token("default/gone"), id="its endpoint is gone"),
        pytest.param(token("other/b"), id="another namespace"),
        pytest.param({"x-session-token": "%%%"}, id="not base64"),
        pytest.param({"x-session-token": "/w=="}, id="not text"),
        pytest.param({"x-session-token": ""}, id="empty"),
    ],
)
def test_without_a_token_of_ours_all_endpoints_are_kept(sent: dict[str, str]) -> None:
    assert make().filter(build.request(headers=sent), [A, B, C]) == [A, B, C]


def test_ranks_of_one_pod_are_told_apart() -> None:
    ranks = [build.endpoint("pod", port=8000 + rank, rank=rank) for rank in range(12)]
    chosen = make()
    for rank in (0, 1, 11):
        sent = chosen.answer_headers(build.request(), Pick((ranks[rank],)), "")
        assert chosen.filter(build.request(headers=sent), ranks) == [ranks[rank]]
    go_style = token("default/pod-rank-0")
    assert chosen.filter(build.request(headers=go_style), ranks) == [ranks[0]]


def test_the_fallback_that_served_is_the_one_to_come_back_to() -> None:
    first, second = build.endpoint("a", port=1), build.endpoint("b", port=2)
    sent = make().answer_headers(build.request(), Pick((first, second)), "10.0.0.1:2")
    assert sent == token("default/b")


def test_a_prefill_instance_follows_the_prefill_endpoint() -> None:
    chosen = make(
        profileName="prefill", encodedEndpointHeaderConfig={"header": "X-Session-Token-Prefill"}
    )
    pick = Pick((A,), prefill=B)
    sent = chosen.answer_headers(build.request(), pick, A.address)
    assert list(sent) == ["x-session-token-prefill"]
    assert chosen.filter(build.request(headers=sent), [B, C]) == [B]
    assert chosen.answer_headers(build.request(), Pick((A,)), "") == {}


def test_the_scorer_prefers_what_the_filter_would_keep() -> None:
    scorer = make(cls=SessionAffinityScorer)
    asked = build.request(headers=token("default/c"))
    assert scorer.score(asked, [A, B, C]) == [0.0, 0.0, 1.0]
    assert scorer.score(build.request(), [A, B, C]) == [0.0, 0.0, 0.0]


def test_a_session_is_learnt_from_the_pick_and_forgotten_after_its_ttl() -> None:
    clock = ManualClock(100.0)
    chosen = by_id(clock, evictionTtlSeconds=60)
    asked = build.request(headers={"x-session-id": "s"})
    assert chosen.filter(asked, [A, B]) == [A, B]
    chosen.picked(asked, build.pick("b"))
    clock.advance(60.0)
    assert chosen.filter(asked, [A, B]) == [B]
    assert chosen.filter(build.request(headers={"x-session-id": "t"}), [A, B]) == [A, B]
    clock.advance(0.1)
    assert chosen.filter(asked, [A, B]) == [A, B]
    assert chosen.answer_headers(asked, build.pick("b"), "") == {}


def test_a_request_keeps_its_session_alive() -> None:
    clock = ManualClock()
    chosen = by_id(clock, evictionTtlSeconds=60)
    asked = build.request(headers={"x-session-id": "s"})
    for _ in range(3):
        chosen.picked(asked, build.pick("a"))
        clock.advance(50.0)
    assert chosen.filter(asked, [A, B]) == [A]


def test_a_session_moves_with_its_requests_and_dies_with_its_endpoint() -> None:
    chosen = by_id()
    asked = build.request(headers={"x-session-id": "s"})
    chosen.picked(asked, build.pick("a"))
    chosen.picked(asked, build.pick("b"))
    assert chosen.filter(asked, [A, B]) == [B]
    chosen.forget(A.id)
    assert chosen.filter(asked, [A, B]) == [B]
    chosen.forget(B.id)
    assert chosen.filter(asked, [A, B]) == [A, B]


def test_old_sessions_are_swept_and_their_number_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = ManualClock()
    chosen = by_id(clock, evictionTtlSeconds=5, evictionSweepSeconds=10)

    def visit(name: str) -> None:
        chosen.picked(build.request(headers={"x-session-id": name}), build.pick("a"))

    for i in range(20):
        visit(str(i))
    assert len(chosen.memory) == 20
    clock.advance(10.0)
    visit("new")
    assert len(chosen.memory) == 1
    monkeypatch.setattr(sessions, "MAX_SESSIONS", 3)
    for i in range(9):
        visit(str(i))
    assert len(chosen.memory) == 3


def test_the_first_source_that_has_an_id_counts() -> None:
    chosen = by_id(sources=[{"header": "X-Chat"}, {"attribute": "agent-identity"}])
    chosen.picked(build.request(headers={"x-chat": "1"}, session="2"), build.pick("a"))
    chosen.picked(build.request(session="2"), build.pick("b"))
    assert chosen.filter(build.request(headers={"x-chat": "1"}, session="2"), [A, B]) == [A]
    assert chosen.filter(build.request(session="2"), [A, B]) == [B]


@pytest.mark.parametrize(
    ("source", "says"),
    [
        pytest.param({}, "each sets one of header and attribute", id="neither"),
        pytest.param({"header": "a", "attribute": "b"}, "each sets one of", id="both"),
        pytest.param({"attribute": "mood"}, "no plugin publishes attribute 'mood'", id="unknown"),
    ],
)
def test_a_source_that_cannot_be_read_is_refused(source: dict[str, str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        by_id(sources=[source])


def test_the_older_header_name_works_for_both_strategies() -> None:
    stateless = make(headerName="X-Mine")
    assert list(stateless.answer_headers(build.request(), build.pick("a"), "")) == ["x-mine"]
    stateful = make(strategy="session_id", headerName="X-Mine")
    asked = build.request(headers={"x-mine": "s"})
    stateful.picked(asked, build.pick("b"))
    assert stateful.filter(asked, [A, B]) == [B]


def test_a_session_id_that_is_not_utf_8_is_a_session_too() -> None:
    chosen = by_id(sources=[{"header": "x-mine"}])
    asked = build.request(headers={"x-mine": b"caf\xe9".decode("utf-8", "surrogateescape")})
    chosen.picked(asked, build.pick("b"))
    assert chosen.filter(asked, [A, B, C]) == [B]
