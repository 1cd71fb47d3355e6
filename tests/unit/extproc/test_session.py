"""The ext_proc state machine alone: no protobuf, no gRPC, no router."""

from __future__ import annotations

import msgspec
import pytest

from epp.errors import BadRequest, NoEndpoints, Overloaded, TooLarge
from epp.extproc.budget import BodyBudget
from epp.extproc.messages import (
    Answer,
    Body,
    Decision,
    ForwardAtOnce,
    ForwardHead,
    ForwardWhole,
    Head,
    Message,
    Mode,
    Modes,
    PassBody,
    PassHead,
    PassTrailers,
    Piece,
    Reply,
    RequestReady,
    Side,
    Trailers,
)
from epp.extproc.session import Session
from epp.model import Arrival, Pick
from tests.support import build

REQUEST, RESPONSE = Side.REQUEST, Side.RESPONSE
DUPLEX = Modes(Mode.FULL_DUPLEX_STREAMED, Mode.FULL_DUPLEX_STREAMED)
A = "10.0.0.1:8000"
POST = {":method": "POST", ":path": "/v1/completions", "x-request-id": "r-1"}
TO_A = ForwardHead(Decision(A, {"x-gateway-destination-endpoint": A}))


def session(*, largest: int = 1000, budget: BodyBudget | None = None) -> Session:
    return Session(
        max_body_bytes=largest,
        budget=budget or BodyBudget(10_000),
        new_id=lambda: "made-up",
    )


def modes(request: Mode, response: Mode = Mode.FULL_DUPLEX_STREAMED) -> Modes:
    return Modes(request, response)


def head(*, ends: bool = False, told: Modes | None = DUPLEX, **headers: str) -> Head:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Head(REQUEST, {**POST, **named}, ends, modes=told)


def decide(open_session: Session, event: object, body: bytes | None = None) -> Arrival:
    """Accept what must be a `RequestReady`, for endpoint a."""
    assert isinstance(event, RequestReady)
    open_session.accept(build.pick("a"), event.arrival.body if body is None else body)
    return event.arrival


# --- full duplex -------------------------------------------------------------------


def test_a_request_is_decided_when_its_last_piece_is_there() -> None:
    s = session()
    assert s.receive(head()) is None
    assert s.receive(Body(REQUEST, b"ab")) is None
    assert s.replies() == []
    arrival = decide(s, s.receive(Body(REQUEST, b"cd", ends=True)))
    assert arrival == Arrival("r-1", POST, b"abcd")
    assert s.replies() == [TO_A, Piece(REQUEST, b"abcd", ends=True)]


def test_an_empty_flagged_piece_ends_the_body() -> None:
    s = session()
    s.receive(head())
    assert s.receive(Body(REQUEST, b"abcd")) is None
    decide(s, s.receive(Body(REQUEST, b"", ends=True)))
    assert s.replies() == [TO_A, Piece(REQUEST, b"abcd", ends=True)]


def test_trailers_end_the_body_and_then_no_piece_is_flagged() -> None:
    s = session()
    s.receive(head())
    s.receive(Body(REQUEST, b"abcd"))
    decide(s, s.receive(Trailers(REQUEST)))
    assert s.replies() == [TO_A, Piece(REQUEST, b"abcd", ends=False), PassTrailers(REQUEST)]


def test_trailers_without_a_body_send_no_piece() -> None:
    s = session()
    s.receive(head())
    decide(s, s.receive(Trailers(REQUEST)))
    assert s.replies() == [TO_A, PassTrailers(REQUEST)]


def test_an_empty_body_goes_on_as_one_empty_flagged_piece() -> None:
    s = session()
    s.receive(head())
    decide(s, s.receive(Body(REQUEST, b"", ends=True)))
    assert s.replies() == [TO_A, Piece(REQUEST, b"", ends=True)]


def test_a_large_body_goes_on_in_pieces_of_62000_bytes() -> None:
    s = session(largest=200_000, budget=BodyBudget(200_000))
    s.receive(head())
    body = bytes(124_001)
    decide(s, s.receive(Body(REQUEST, body, ends=True)))
    _, *pieces = s.replies()
    sizes = [(len(p.data), p.ends) for p in pieces if isinstance(p, Piece)]
    assert sizes == [(62_000, False), (62_000, False), (1, True)]


def test_a_body_of_exactly_one_piece_is_not_followed_by_an_empty_one() -> None:
    s = session(largest=100_000, budget=BodyBudget(100_000))
    s.receive(head())
    decide(s, s.receive(Body(REQUEST, bytes(62_000), ends=True)))
    assert len(s.replies()) == 2


def test_a_repeated_last_piece_is_ignored() -> None:
    s = session()
    s.receive(head())
    decide(s, s.receive(Body(REQUEST, b"abcd", ends=True)))
    s.replies()
    assert s.receive(Body(REQUEST, b"abcd", ends=True)) is None
    assert s.replies() == []
    assert s.spurious == 1


def test_a_body_changed_on_the_way_sets_no_content_length() -> None:
    s = session()
    s.receive(head(content_length="4"))
    decide(s, s.receive(Body(REQUEST, b"abcd", ends=True)), body=b"longer")
    assert s.replies() == [TO_A, Piece(REQUEST, b"longer", ends=True)]


# --- decided at the head -----------------------------------------------------------


def test_a_head_that_ends_the_request_is_decided_at_once() -> None:
    s = session()
    arrival = decide(s, s.receive(head(ends=True)))
    assert arrival == Arrival("r-1", POST)
    assert s.replies() == [TO_A]


@pytest.mark.parametrize(
    "mode", [Mode.NONE, Mode.STREAMED, Mode.BUFFERED_PARTIAL], ids=lambda mode: mode.name
)
def test_where_the_head_goes_on_before_the_body_it_is_decided_by_load(mode: Mode) -> None:
    s = session()
    arrival = decide(s, s.receive(head(told=modes(mode))))
    assert arrival.body_hidden
    assert s.replies() == [TO_A]
    for ends in (False, True):
        assert s.receive(Body(REQUEST, b"abc", ends)) is None
        assert s.replies() == [PassBody(REQUEST)]


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param({"connection": "Upgrade", "upgrade": "websocket"}, id="upgrade"),
        pytest.param({":method": "CONNECT"}, id="CONNECT"),
    ],
)
def test_an_upgrade_is_decided_at_the_head_and_its_bytes_pass_both_ways(
    headers: dict[str, str],
) -> None:
    s = session()
    decide(s, s.receive(Head(REQUEST, {**POST, **headers}, modes=DUPLEX)))
    assert s.replies() == [TO_A]
    s.receive(Head(RESPONSE, {":status": "101"}))
    assert s.receive(Body(REQUEST, b"up")) is None
    s.receive(Body(RESPONSE, b"down"))
    s.receive(Body(REQUEST, b"", ends=True))
    assert s.replies() == [
        PassHead(RESPONSE),
        Piece(REQUEST, b"up", ends=False),
        Piece(RESPONSE, b"down", ends=False),
        Piece(REQUEST, b"", ends=True),
    ]


def test_a_post_that_merely_offers_an_upgrade_is_decided_with_its_body() -> None:
    s = session()
    assert s.receive(head(upgrade="h2c", content_length="2")) is None
    arrival = decide(s, s.receive(Body(REQUEST, b"{}", ends=True)))
    assert arrival.body == b"{}"


# --- buffered ----------------------------------------------------------------------


def test_buffered_answers_the_head_first_and_decides_with_the_body() -> None:
    s = session()
    assert s.receive(head(told=modes(Mode.BUFFERED), x_prefiller_host_port="evil")) is None
    assert s.replies() == [PassHead(REQUEST, remove=("x-prefiller-host-port",))]
    arrival = decide(s, s.receive(Body(REQUEST, b"abcd", ends=True)))
    assert arrival.body == b"abcd"
    (reply,) = s.replies()
    assert isinstance(reply, ForwardWhole)
    assert reply.data is None
    assert reply.decision.set == {"x-gateway-destination-endpoint": A}


def test_buffered_sets_the_length_of_a_changed_body() -> None:
    s = session()
    s.receive(head(told=modes(Mode.BUFFERED), content_length="4"))
    s.replies()
    decide(s, s.receive(Body(REQUEST, b"abcd", ends=True)), body=b"longer")
    (reply,) = s.replies()
    assert isinstance(reply, ForwardWhole)
    assert reply.data == b"longer"
    assert reply.decision.set["content-length"] == "6"


def test_a_buffered_body_is_whole_without_a_flag_and_trailers_may_follow() -> None:
    s = session()
    s.receive(head(told=modes(Mode.BUFFERED)))
    s.replies()
    decide(s, s.receive(Body(REQUEST, b"abcd")))
    assert s.receive(Trailers(REQUEST)) is None
    assert [type(reply) for reply in s.replies()] == [ForwardWhole, PassTrailers]


# --- no mode told ------------------------------------------------------------------


def test_a_piece_before_the_heads_answer_means_full_duplex() -> None:
    s = session()
    s.receive(head(told=None))
    assert s.guessing
    s.receive(Body(REQUEST, b"ab"))
    assert not s.guessing
    decide(s, s.receive(Body(REQUEST, b"cd", ends=True)))
    assert s.replies() == [TO_A, Piece(REQUEST, b"abcd", ends=True)]
    s.receive(Head(RESPONSE, {":status": "200"}))
    s.receive(Body(RESPONSE, b"x", ends=True))
    assert s.replies() == [PassHead(RESPONSE), Piece(RESPONSE, b"x", ends=True)]


def test_silence_means_that_the_gateway_waits_for_the_heads_answer() -> None:
    budget = BodyBudget(100)
    s = session(budget=budget)
    s.receive(head(told=None, content_length="50"))
    arrival = decide(s, s.silence())
    assert arrival.body_hidden
    assert budget.used == 0
    assert s.replies() == [TO_A]
    s.receive(Body(REQUEST, b"abc", ends=True))
    s.receive(Head(RESPONSE, {":status": "200"}))
    s.receive(Body(RESPONSE, b"x", ends=True))
    assert s.replies() == [PassBody(REQUEST), PassHead(RESPONSE), PassBody(RESPONSE)]


# --- the pick ----------------------------------------------------------------------


def decision(replies: list[Reply]) -> Decision:
    (reply,) = replies
    assert isinstance(reply, ForwardHead)
    return reply.decision


def test_control_headers_of_a_client_are_removed_unless_we_set_them() -> None:
    s = session()
    s.receive(
        head(
            ends=True,
            x_prefiller_host_port="evil:1",
            x_prefiller_url="http://evil",
            x_data_parallel_host_port="evil:2",
            x_gateway_destination_endpoint="evil:3",
        )
    )
    s.accept(
        msgspec.structs.replace(build.pick("a"), headers={"x-prefiller-host-port": "b:1"}), b""
    )
    chosen = decision(s.replies())
    assert chosen.set == {"x-gateway-destination-endpoint": A, "x-prefiller-host-port": "b:1"}
    assert chosen.remove == ("x-data-parallel-host-port", "x-prefiller-url")


def test_a_picks_headers_are_set_only_where_they_change_something_and_may_be_set() -> None:
    s = session()
    s.receive(head(ends=True, x_same="1"))
    wanted = {
        "X-New": "2",
        "x-same": "1",
        "content-length": "3",
        "host": "h",
        "connection": "close",
        ":path": "/",
        "x-envoy-original-path": "/",
        "x-gateway-destination-endpoint": "other",
    }
    s.accept(Pick((build.endpoint("a"),), headers=wanted), b"")
    assert decision(s.replies()).set == {"x-gateway-destination-endpoint": A, "x-new": "2"}


def test_a_request_without_an_id_gets_one() -> None:
    s = session()
    event = s.receive(Head(REQUEST, {":path": "/"}, ends=True, modes=DUPLEX))
    assert decide(s, event).id == "made-up"
    assert decision(s.replies()).set["x-request-id"] == "made-up"


@pytest.mark.parametrize(
    ("at_head", "at_body", "expected"),
    [
        pytest.param(None, None, None, id="no hint allows the whole pool"),
        pytest.param(("a",), None, ("a",), id="on the head"),
        pytest.param(None, ("b",), ("b",), id="on the body"),
        pytest.param(("a",), ("b",), ("b",), id="the later one wins"),
        pytest.param(("a",), (), (), id="an empty one is one"),
    ],
)
def test_the_subset_hint(
    at_head: tuple[str, ...] | None,
    at_body: tuple[str, ...] | None,
    expected: tuple[str, ...] | None,
) -> None:
    s = session()
    s.receive(Head(REQUEST, POST, subset=at_head, modes=DUPLEX))
    event = s.receive(Body(REQUEST, b"{}", ends=True, subset=at_body))
    assert isinstance(event, RequestReady)
    assert event.arrival.subset == expected


# --- refusals ----------------------------------------------------------------------


def test_an_announced_body_over_the_limit_is_refused_at_the_head() -> None:
    with pytest.raises(TooLarge, match="1000 bytes"):
        session().receive(head(content_length="1001"))


def test_a_body_that_grows_over_the_limit_is_refused() -> None:
    s = session()
    s.receive(head())
    s.receive(Body(REQUEST, bytes(1000)))
    with pytest.raises(TooLarge):
        s.receive(Body(REQUEST, b"x"))


@pytest.mark.parametrize("length", ["", "-1", "abc", "1e3", "²"])
def test_a_length_that_is_no_number_is_not_believed(length: str) -> None:
    s = session()
    assert s.receive(head(content_length=length)) is None


def test_a_hidden_body_has_no_limit() -> None:
    s = session(budget=BodyBudget(1))
    decide(s, s.receive(head(told=modes(Mode.STREAMED), content_length="9999999")))
    s.receive(Body(REQUEST, bytes(5000), ends=True))
    assert s.replies() == [TO_A, PassBody(REQUEST)]


def test_the_budget_is_taken_as_bytes_come_and_given_back_once() -> None:
    budget = BodyBudget(100)
    first, second = session(budget=budget), session(budget=budget)
    first.receive(head(content_length="90"))
    first.receive(Body(REQUEST, bytes(80)))
    assert budget.used == 80
    with pytest.raises(Overloaded):
        second.receive(head(content_length="21"))
    second.free()
    assert budget.used == 80
    event = first.receive(Body(REQUEST, bytes(10), ends=True))
    assert budget.used == 90
    decide(first, event)
    first.free()
    first.free()
    assert budget.used == 0


def test_a_length_that_is_only_announced_keeps_nobody_out() -> None:
    budget = BodyBudget(100)
    announcing, sending = session(budget=budget), session(budget=budget)
    announcing.receive(head(content_length="100"))
    sending.receive(head(content_length="100"))
    decide(sending, sending.receive(Body(REQUEST, bytes(100), ends=True)))
    with pytest.raises(Overloaded):
        announcing.receive(Body(REQUEST, b"x"))
    announcing.free()
    assert budget.used == 100
    sending.free()
    assert budget.used == 0


def test_a_refusal_is_the_only_reply_and_gives_the_budget_back() -> None:
    budget = BodyBudget(100)
    s = session(budget=budget)
    s.receive(head(told=modes(Mode.BUFFERED), content_length="80"))
    assert s.reject(BadRequest("not JSON"))
    (reply,) = s.replies()
    assert isinstance(reply, Answer)
    assert reply.status == 400
    assert budget.used == 0
    assert s.finished
    assert s.receive(Body(REQUEST, b"x", ends=True)) is None
    assert s.replies() == []


def test_nothing_is_answered_once_the_response_has_begun() -> None:
    s = session()
    decide(s, s.receive(head(ends=True)))
    s.receive(Head(RESPONSE, {":status": "200"}))
    assert not s.reject(NoEndpoints("late"))
    assert s.replies() == []


# --- the response ------------------------------------------------------------------


def answered(told: Modes = DUPLEX) -> Session:
    s = session()
    decide(s, s.receive(head(ends=True, told=told)))
    s.replies()
    return s


def test_each_piece_of_a_response_goes_on_at_once() -> None:
    s = answered()
    first = Head(RESPONSE, {":status": "200"})
    assert s.receive(first) is first
    assert s.replies() == [PassHead(RESPONSE)]
    for data, ends in ((b"a", False), (b"", False), (b"bc", False), (b"", True)):
        piece = Body(RESPONSE, data, ends)
        assert s.receive(piece) is piece
        assert s.replies() == [Piece(RESPONSE, data, ends)]


def test_a_large_piece_of_a_response_is_split_and_flagged_once() -> None:
    s = answered()
    s.receive(Head(RESPONSE, {":status": "200"}))
    s.replies()
    s.receive(Body(RESPONSE, bytes(100_000), ends=True))
    sizes = [(len(p.data), p.ends) for p in s.replies() if isinstance(p, Piece)]
    assert sizes == [(62_000, False), (38_000, True)]


@pytest.mark.parametrize("mode", [Mode.STREAMED, Mode.BUFFERED, Mode.BUFFERED_PARTIAL])
def test_outside_full_duplex_a_response_is_never_streamed_back(mode: Mode) -> None:
    s = answered(modes(Mode.FULL_DUPLEX_STREAMED, mode))
    s.receive(Head(RESPONSE, {":status": "200"}))
    s.receive(Body(RESPONSE, b"abc", ends=True))
    assert s.replies() == [PassHead(RESPONSE), PassBody(RESPONSE)]


def test_response_trailers_end_it() -> None:
    s = answered()
    s.receive(Head(RESPONSE, {":status": "200"}))
    s.receive(Body(RESPONSE, b"abc"))
    trailers = Trailers(RESPONSE)
    assert s.receive(trailers) is trailers
    assert s.replies()[-2:] == [Piece(RESPONSE, b"abc", ends=False), PassTrailers(RESPONSE)]
    assert not s.unseen(closed=True)


def test_headers_may_be_set_on_the_answer() -> None:
    s = answered()
    s.receive(Head(RESPONSE, {":status": "200"}))
    s.set_on_answer({"x-session-token": "t", "content-length": "1"})
    assert s.replies() == [PassHead(RESPONSE, {"x-session-token": "t"})]


def test_a_stream_that_begins_with_the_response_passes_through() -> None:
    s = session()
    s.receive(Head(RESPONSE, {":status": "200"}, modes=DUPLEX))
    s.receive(Body(RESPONSE, b"abc", ends=True))
    assert s.replies() == [PassHead(RESPONSE), Piece(RESPONSE, b"abc", ends=True)]


def test_a_response_while_the_body_is_gathered_gives_the_request_up() -> None:
    budget = BodyBudget(100)
    s = session(budget=budget)
    s.receive(head(content_length="50"))
    s.receive(Body(REQUEST, b"ab"))
    s.receive(Head(RESPONSE, {":status": "408"}, ends=True))
    assert s.replies() == [PassHead(RESPONSE)]
    assert budget.used == 0
    assert s.receive(Body(REQUEST, b"cd", ends=True)) is None
    assert s.replies() == []


@pytest.mark.parametrize(
    ("told", "seen", "closed", "unseen"),
    [
        pytest.param(modes(Mode.FULL_DUPLEX_STREAMED, Mode.NONE), 0, False, True, id="hidden"),
        pytest.param(modes(Mode.FULL_DUPLEX_STREAMED, Mode.NONE), 1, False, True, id="head only"),
        pytest.param(modes(Mode.FULL_DUPLEX_STREAMED, Mode.NONE), 2, True, False, id="no body"),
        pytest.param(DUPLEX, 0, True, False, id="full duplex is shown"),
        pytest.param(DUPLEX, 1, True, False, id="full duplex broke off"),
        pytest.param(modes(Mode.NONE, Mode.STREAMED), 1, True, True, id="trailers not shown"),
        pytest.param(modes(Mode.NONE, Mode.STREAMED), 1, False, False, id="streamed broke off"),
        pytest.param(None, 0, True, True, id="not told, closed in order"),
        pytest.param(None, 0, False, False, id="not told, cancelled"),
    ],
)
def test_whether_the_answer_goes_by_unseen(
    told: Modes | None, seen: int, closed: bool, unseen: bool
) -> None:
    s = session()
    decide(s, s.receive(head(ends=True, told=told)))
    if seen:
        s.receive(Head(RESPONSE, {":status": "200"}, ends=seen == 2))
    assert s.unseen(closed=closed) is unseen


# --- head and body in one reply ------------------------------------------------------


LEAN = modes(Mode.FULL_DUPLEX_STREAMED, Mode.NONE)


def at_once(told: Modes | None, *last: Message, body: bytes = b"abcd") -> list[Reply]:
    """The replies to a request whose gateway takes head and body in one."""
    s = session(largest=2**21, budget=BodyBudget(2**21))
    s.receive(head(told=told))
    s.receive(Body(REQUEST, body))
    event = None
    for message in last:
        event = s.receive(message)
    assert isinstance(event, RequestReady)
    s.accept(build.pick("a"), event.arrival.body, at_once=True)
    return s.replies()


ENDS = Body(REQUEST, b"", ends=True)


def test_where_no_answer_is_shown_head_and_body_go_on_in_one_reply() -> None:
    assert at_once(LEAN, ENDS) == [ForwardAtOnce(TO_A.decision, b"abcd")]


def test_a_body_may_be_a_mebibyte_to_go_on_with_the_head() -> None:
    whole, longer = bytes(2**20), bytes(2**20 + 1)
    assert at_once(LEAN, ENDS, body=whole) == [ForwardAtOnce(TO_A.decision, whole)]
    replies = at_once(LEAN, ENDS, body=longer)
    assert [type(reply) for reply in replies] == [ForwardHead, *[Piece] * 17]


@pytest.mark.parametrize(
    ("told", "last"),
    [
        pytest.param(DUPLEX, ENDS, id="the answer is shown"),
        pytest.param(None, ENDS, id="the gateway told nothing"),
        pytest.param(LEAN, Trailers(REQUEST), id="trailers follow"),
    ],
)
def test_elsewhere_the_body_follows_in_pieces(told: Modes | None, last: Message) -> None:
    first, piece, *_ = at_once(told, last)
    assert first == TO_A
    assert piece == Piece(REQUEST, b"abcd", ends=last is ENDS)


def test_an_empty_body_never_replaces_one() -> None:
    assert at_once(LEAN, ENDS, body=b"") == [TO_A, Piece(REQUEST, b"", ends=True)]


# --- out of order ------------------------------------------------------------------


def test_a_second_request_head_is_passed_and_counted() -> None:
    s = session()
    s.receive(head())
    assert s.receive(head()) is None
    assert s.replies() == [PassHead(REQUEST)]
    assert s.spurious == 1


def test_a_body_without_a_head_passes_through() -> None:
    s = session()
    s.receive(Body(REQUEST, b"ab", modes=DUPLEX))
    s.receive(Body(REQUEST, b"cd", ends=True))
    assert s.replies() == [Piece(REQUEST, b"ab", ends=False), Piece(REQUEST, b"cd", ends=True)]


def test_a_second_response_head_is_passed_and_heard_once() -> None:
    s = answered()
    s.receive(Head(RESPONSE, {":status": "200"}))
    assert s.receive(Head(RESPONSE, {":status": "200"})) is None
    assert s.replies() == [PassHead(RESPONSE), PassHead(RESPONSE)]


def test_a_repeated_last_piece_of_a_response_is_heard_once() -> None:
    s = answered()
    s.receive(Head(RESPONSE, {":status": "200"}))
    s.receive(Body(RESPONSE, b"x", ends=True))
    s.replies()
    assert s.receive(Body(RESPONSE, b"x", ends=True)) is None
    assert s.replies() == []
