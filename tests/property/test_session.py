"""The session under any legal order of messages, any split of any body, and any modes."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from epp.errors import EppError
from epp.extproc.budget import BodyBudget
from epp.extproc.messages import (
    Answer,
    Body,
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
from tests.support import build

BUDGET = 1_000_000
MODES = st.sampled_from([m for m in Mode if m is not Mode.GRPC])
SIZES = st.integers(0, 12) | st.sampled_from([61_999, 62_000, 62_001, 124_000, 150_000])


FORWARDS = (ForwardHead, ForwardWhole, ForwardAtOnce)


class Script(msgspec.Struct):
    """What a gateway shows of one HTTP exchange."""

    modes: Modes | None
    request: list[Message]
    response: list[Message]
    request_body: bytes
    response_body: bytes
    at_once: bool


@st.composite
def side(draw: st.DrawFn, which: Side, mode: Mode) -> tuple[list[Message], bytes]:
    """One side's messages as the mode shows them, and its whole body."""
    headers = {":status": "200"} if which is Side.RESPONSE else {"x-request-id": "r"}
    if draw(st.booleans()):
        return [Head(which, headers, ends=True)], b""
    sizes = draw(st.lists(SIZES, max_size=4))
    body = bytes(i % 251 for i in range(sum(sizes)))
    with_trailers = draw(st.booleans())
    messages: list[Message] = [Head(which, headers)]
    if mode is Mode.NONE:
        return messages, b""
    if mode in (Mode.BUFFERED, Mode.BUFFERED_PARTIAL):
        messages.append(Body(which, body, ends=not with_trailers))
    else:
        start = 0
        for size in sizes:
            messages.append(Body(which, body[start : start + size]))
            start += size
        if not with_trailers:
            if sizes and draw(st.booleans()):
                messages[-1] = msgspec.structs.replace(messages[-1], ends=True)
            else:
                messages.append(Body(which, b"", ends=True))
    if with_trailers:
        messages.append(Trailers(which))
    return messages, body


@st.composite
def scripts(draw: st.DrawFn) -> Script:
    told = draw(st.none() | st.builds(Modes, MODES, MODES))
    shown = told or Modes(Mode.FULL_DUPLEX_STREAMED, Mode.FULL_DUPLEX_STREAMED)
    request, request_body = draw(side(Side.REQUEST, shown.request))
    response, response_body = draw(side(Side.RESPONSE, shown.response))
    duplex = shown.request is Mode.FULL_DUPLEX_STREAMED
    last = request[-1]
    if duplex and isinstance(last, Body) and draw(st.booleans()):
        request.append(last)  # the last piece once more
    request[0] = msgspec.structs.replace(request[0], modes=told)
    return Script(told, request, response, request_body, response_body, draw(st.booleans()))


def play(script: Script, session: Session) -> tuple[list[Reply], int, int]:
    """Return all replies, the number of decisions asked for, and of response parts heard."""
    replies: list[Reply] = []
    decisions = heard = 0
    for message in [*script.request, *script.response]:
        event = session.receive(message)
        if isinstance(event, RequestReady):
            decisions += 1
            session.accept(build.pick("a"), event.arrival.body, at_once=script.at_once)
        elif event is not None:
            heard += 1
        replies += session.replies()
    session.free()
    return replies, decisions, heard


def new_session(budget: BodyBudget) -> Session:
    return Session(max_body_bytes=BUDGET, budget=budget, new_id=lambda: "id")


def is_duplex(modes: Modes | None, which: Side) -> bool:
    if modes is None:
        return True
    mode = modes.request if which is Side.REQUEST else modes.response
    return mode is Mode.FULL_DUPLEX_STREAMED


def as_piece(reply: Reply) -> Piece | None:
    """What a reply says of a full-duplex body."""
    if isinstance(reply, ForwardAtOnce):
        return Piece(Side.REQUEST, reply.data, ends=True)
    return reply if isinstance(reply, Piece) else None


@given(scripts())
def test_one_decision_and_every_byte_once(script: Script) -> None:
    budget = BodyBudget(BUDGET)
    replies, decisions, heard = play(script, new_session(budget))
    assert decisions == 1
    assert heard == len(script.response)
    assert sum(isinstance(reply, FORWARDS) for reply in replies) == 1
    assert budget.used == 0
    for which, body in (
        (Side.REQUEST, script.request_body),
        (Side.RESPONSE, script.response_body),
    ):
        pieces = [r for r in map(as_piece, replies) if r is not None and r.side is which]
        if not is_duplex(script.modes, which):
            assert pieces == []
            continue
        assert b"".join(piece.data for piece in pieces) == body
        assert all(len(r.data) <= 62_000 for r in replies if isinstance(r, Piece))
        messages = script.request if which is Side.REQUEST else script.response
        by_flag = any(isinstance(m, Body) and m.ends for m in messages)
        assert [p.ends for p in pieces if p.ends] == [True] * by_flag
        if by_flag:
            assert pieces[-1].ends


@given(scripts())
def test_outside_full_duplex_each_message_has_exactly_one_reply_of_its_kind(
    script: Script,
) -> None:
    replies, _, _ = play(script, new_session(BodyBudget(BUDGET)))
    kinds: dict[type, type] = {
        ForwardHead: Head,
        PassHead: Head,
        ForwardWhole: Body,
        PassBody: Body,
        PassTrailers: Trailers,
    }
    for which, messages in ((Side.REQUEST, script.request), (Side.RESPONSE, script.response)):
        if is_duplex(script.modes, which):
            continue
        of_side = [r for r in replies if getattr(r, "side", Side.REQUEST) is which]
        assert [kinds[type(reply)] for reply in of_side] == [type(m) for m in messages]


@given(scripts())
def test_replies_of_a_side_come_as_head_body_trailers(script: Script) -> None:
    replies, _, _ = play(script, new_session(BodyBudget(BUDGET)))
    order = {
        ForwardHead: 0, PassHead: 0, ForwardAtOnce: 1, Piece: 1, PassBody: 1, ForwardWhole: 1,
        PassTrailers: 2,
    }  # fmt: skip
    for which in Side:
        ranks = [order[type(r)] for r in replies if getattr(r, "side", Side.REQUEST) is which]
        assert ranks == sorted(ranks)


ANY = st.one_of(
    st.builds(
        Head,
        st.sampled_from(Side),
        st.sampled_from([{}, {"content-length": "5"}, {"upgrade": "x"}, {":status": "200"}]),
        st.booleans(),
        modes=st.none() | st.builds(Modes, st.sampled_from(Mode), st.sampled_from(Mode)),
    ),
    st.builds(Body, st.sampled_from(Side), st.binary(max_size=20), st.booleans()),
    st.builds(Trailers, st.sampled_from(Side)),
)


@given(st.lists(ANY, max_size=12), st.integers(0, 12))
def test_no_order_of_messages_breaks_a_session(messages: list[Message], refused_at: int) -> None:
    """Lawless gateways: at most one decision, one answer, and the budget whole at the end."""
    budget = BodyBudget(30)
    session = Session(max_body_bytes=25, budget=budget, new_id=lambda: "id")
    decisions = 0
    replies: list[Reply] = []
    for i, message in enumerate(messages):
        if session.finished:
            break
        try:
            if session.guessing and i == refused_at:
                event: object = session.silence()
            else:
                event = session.receive(message)
            if isinstance(event, RequestReady):
                decisions += 1
                session.accept(build.pick("a"), event.arrival.body, at_once=refused_at % 2 == 0)
        except EppError as error:
            session.reject(error)
        replies += session.replies()
    session.free()
    assert decisions <= 1
    answers = [i for i, reply in enumerate(replies) if isinstance(reply, Answer)]
    assert answers in ([], [len(replies) - 1])
    begun = [
        i for i, r in enumerate(replies) if isinstance(r, PassHead) and r.side is Side.RESPONSE
    ]
    assert not (answers and begun)
    assert budget.used == 0
