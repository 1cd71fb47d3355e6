"""What a client may not do with a stream costs it that stream alone, and nobody else anything.

**Source:** RFC 9113, 5.1, 5.1.1, 6.9 and 8.1.1; gRPC, doc/PROTOCOL-HTTP2.md.
"""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Awaitable, Callable

import h2.events
import hpack.hpack
import pytest

from epp.rpc import connection, frames
from epp.rpc.call import WINDOW, Call
from epp.rpc.frames import END_HEADERS, END_STREAM, Fault, frame
from epp.rpc.heads import answer_head
from epp.rpc.status import Gone
from epp.rpc.turns import CALLS_A_TURN
from tests.support.rpc import HEAD, PLAIN_HEAD, Talk, message
from tests.support.serving import eventually

PATH = "/a.B/Do"
TRAILERS = b"\x00\x01a\x01b"  #: a header block: ``a: b``


async def echo(call: Call) -> None:
    while isinstance(data := await call.read(), bytes):
        await call.write(data)


async def wait(call: Call) -> None:
    await asyncio.Event().wait()


def talk(
    script: Callable[[Talk], Awaitable[None]], method: Callable[[Call], Awaitable[None]] = echo
) -> None:
    async def main() -> None:
        await script(Talk({PATH: method}))

    asyncio.run(main())


def opened(stream: int, *, ends: bool = False) -> bytes:
    return frame(frames.HEADERS, END_HEADERS | (END_STREAM if ends else 0), stream, PLAIN_HEAD)


@pytest.mark.parametrize(
    ("ends", "sent", "fault"),
    [
        (False, frames.window_update(1, 0), Fault.PROTOCOL_ERROR),
        (False, frames.window_update(1, 2**31 - 1), Fault.FLOW_CONTROL_ERROR),
        (True, frame(frames.DATA, 0, 1, b"abc"), Fault.STREAM_CLOSED),
        (True, frame(frames.HEADERS, END_HEADERS | END_STREAM, 1, TRAILERS), Fault.STREAM_CLOSED),
        (False, frame(frames.HEADERS, END_HEADERS, 1, TRAILERS), Fault.PROTOCOL_ERROR),
        (False, frame(frames.PRIORITY, 0, 1, b"\0" * 4), Fault.FRAME_SIZE_ERROR),
    ],
)
def test_who_breaks_a_streams_rules_loses_that_stream(
    sent: bytes, fault: Fault, *, ends: bool
) -> None:
    async def script(talk: Talk) -> None:
        talk.raw(opened(1, ends=ends))
        await asyncio.sleep(0)
        assert talk.raw(sent) == frames.reset(1, fault)
        await asyncio.sleep(0)
        assert not talk.connection.calls
        assert not talk.wire.closed
        assert talk.raw(opened(3, ends=True)) == b""  # the next is served
        assert list(talk.connection.calls) == [3]

    talk(script, wait)


def test_more_than_was_let_in_costs_the_stream() -> None:
    async def script(talk: Talk) -> None:
        talk.raw(opened(1))
        await asyncio.sleep(0)
        full = frame(frames.DATA, 0, 1, message(b"x" * (frames.MOST_PAYLOAD - 5)))
        answers = [talk.raw(full) for _ in range(WINDOW // frames.MOST_PAYLOAD * 3)]
        assert frames.reset(1, Fault.FLOW_CONTROL_ERROR) in answers
        assert not talk.connection.calls

    talk(script, wait)


def test_a_stream_cannot_be_opened_again() -> None:
    async def script(talk: Talk) -> None:
        talk.raw(opened(3, ends=True))
        await asyncio.sleep(0)
        assert not talk.wire.closed
        answer = talk.raw(opened(1))
        assert b"opened stream 1 again" in answer
        assert talk.wire.closed

    talk(script, wait)


def test_settings_that_make_a_window_too_large_end_the_connection() -> None:
    async def script(talk: Talk) -> None:
        talk.raw(opened(1))
        talk.raw(frames.window_update(1, 2**31 - 1 - frames.FIRST_WINDOW))
        talk.raw(frames.settings({frames.INITIAL_WINDOW_SIZE: frames.FIRST_WINDOW + 1}))
        assert talk.wire.closed

    talk(script, wait)


@pytest.mark.parametrize(
    "head",
    [
        HEAD[1:],
        (*HEAD, (":path", "/again")),
        (*HEAD, (":status", "200")),
        (*HEAD[:2], (":path", ""), *HEAD[3:]),
        (("a", "b"), *HEAD),
        (*HEAD, ("Upper", "x")),
        (*HEAD, ("connection", "close")),
        (*HEAD[:4], ("te", "gzip"), *HEAD[5:]),
    ],
    ids=["no method", "two paths", "a status", "empty path", "pseudo last", "upper case",
         "of one hop", "te"],
)  # fmt: skip
def test_a_head_that_is_not_allowed_costs_its_stream(head: tuple[tuple[str, str], ...]) -> None:
    block = b"".join(
        b"\x00" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
        for name, value in head
    )

    async def script(talk: Talk) -> None:
        answer = talk.raw(frame(frames.HEADERS, END_HEADERS, 1, block))
        assert answer == frames.reset(1, Fault.PROTOCOL_ERROR)
        assert not talk.connection.calls

    talk(script)


def test_a_client_begins_with_its_settings() -> None:
    async def main() -> None:
        talk = Talk({PATH: echo}, begun=False)
        talk.raw(frames.PREFACE + frame(frames.PING, 0, 0, b"8" * 8))
        assert talk.wire.closed

    asyncio.run(main())


def test_a_last_message_that_is_not_whole_is_told() -> None:
    async def script(talk: Talk) -> None:
        stream = talk.open()
        talk.client.send_data(stream, message(b"abc")[:-1], end_stream=True)
        talk.pump()
        await talk.settle()
        assert talk.status(stream) == ("13", "the last message is not whole")

    talk(script)


def test_a_call_that_fails_before_it_began_leaves_nothing() -> None:
    async def script(talk: Talk) -> None:
        large = frame(frames.DATA, 0, 1, message(b"x" * 2**21)[:20])
        talk.raw(opened(1) + large)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not talk.connection.calls

    talk(script)


# --- others have their turn --------------------------------------------------------


def test_a_flood_is_taken_in_turns_and_nothing_more_is_read_meanwhile() -> None:
    ping = frame(frames.PING, 0, 0, b"12345678")
    pong = frame(frames.PING, frames.ACK, 0, b"12345678")

    async def script(talk: Talk) -> None:
        most = connection.FRAMES_A_TURN
        assert talk.raw(ping * (2 * most) + ping[:5]) == pong * most
        assert not talk.wire.reading
        await asyncio.sleep(0)
        assert bytes(talk.wire.sent) == pong * most
        await asyncio.sleep(0)
        assert talk.wire.reading
        talk.wire.sent.clear()
        assert talk.raw(ping[5:]) == pong

    talk(script)


def test_a_connection_that_ends_amid_its_turns_takes_nothing_more() -> None:
    begun: list[int] = []

    async def note(call: Call) -> None:
        begun.append(call.number)

    async def script(talk: Talk) -> None:
        talk.raw(b"".join(opened(1 + 2 * n, ends=True) for n in range(100)))
        talk.connection.close()
        talk.wire.sent.clear()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not begun
        assert not talk.connection.calls
        assert not talk.wire.sent

    talk(script, note)


def test_streams_that_are_reset_as_fast_as_they_are_opened_leave_nothing() -> None:
    held: list[weakref.ref[Call]] = []

    async def hold(call: Call) -> None:
        held.append(weakref.ref(call))
        await asyncio.Event().wait()

    async def script(talk: Talk) -> None:
        many = 2_000
        talk.raw(
            b"".join(opened(1 + 2 * n) + frames.reset(1 + 2 * n, Fault.CANCEL) for n in range(many))
        )
        assert len(talk.connection.calls) <= connection.FRAMES_A_TURN

        async def done() -> bool:
            return talk.wire.reading

        await eventually(done)
        await asyncio.sleep(0)
        gc.collect()
        assert not talk.connection.calls
        assert all(call() is None for call in held)
        assert len(asyncio.all_tasks()) == 1

    talk(script, hold)


def test_who_opens_streams_and_does_not_read_is_dropped() -> None:
    async def script(talk: Talk) -> None:
        talk.connection.pause_writing()
        talk.wire.unsent = connection.MOST_UNSENT + 1
        talk.raw(opened(1))
        assert talk.wire.closed

    talk(script)


def test_a_client_that_tells_which_compressions_it_knows_is_told_ours() -> None:
    async def script(talk: Talk) -> None:
        asks, asks_not = talk.open(("grpc-accept-encoding", "gzip")), talk.open()
        for stream in (asks, asks_not):
            talk.client.send_data(stream, message(b"a"), end_stream=True)
        talk.pump()
        await talk.settle()
        told = {
            event.stream_id: dict(event.headers).get("grpc-accept-encoding")
            for event in talk.events
            if isinstance(event, h2.events.ResponseReceived)
        }
        assert told == {asks: "identity,deflate,gzip", asks_not: None}

    talk(script)
    assert len(answer_head(1, tells=False)) < len(answer_head(1, tells=True))


# --- many calls, and long heads -------------------------------------------------------


def test_a_call_beyond_the_most_is_refused_and_taken_once_another_is_over() -> None:
    async def script(talk: Talk) -> None:
        told = talk.client.remote_settings.max_concurrent_streams
        assert told == connection.MOST_CALLS >= 10_000  # what a busy gateway has open on one
        talk.raw(opened(1))
        first = talk.connection.calls[1]
        talk.connection.calls.update({-n: first for n in range(1, told)})
        assert talk.raw(opened(3)) == frames.reset(3, Fault.REFUSED_STREAM)
        del talk.connection.calls[-1]
        assert talk.raw(opened(5)) == b""
        assert 5 in talk.connection.calls

    talk(script, wait)


@pytest.mark.parametrize("lost", [True, False], ids=["lost", "closed"])
def test_of_many_calls_that_are_over_at_once_some_end_in_a_turn(*, lost: bool) -> None:
    async def script(talk: Talk) -> None:
        many = 10 * CALLS_A_TURN
        for n in range(many):
            talk.raw(opened(1 + 2 * n))
            await asyncio.sleep(0)
        calls = list(talk.connection.calls.values())
        assert len(calls) == many
        if lost:
            talk.connection.connection_lost(None)
        else:
            talk.connection.close()
        before = many
        while left := len(talk.connection.calls):
            assert before - left <= CALLS_A_TURN
            assert talk.ended == 0
            before = left
            await asyncio.sleep(0)
        if lost:
            assert not talk.wire.sent
        await asyncio.sleep(0)
        assert talk.ended == 1
        assert all(call.closed for call in calls)
        assert len(asyncio.all_tasks()) == 1

    talk(script, wait)


def test_a_call_of_a_lost_connection_sends_nothing_though_its_turn_has_not_come() -> None:
    async def script(talk: Talk) -> None:
        for n in range(2 * CALLS_A_TURN):
            talk.raw(opened(1 + 2 * n))
        last = talk.connection.calls[4 * CALLS_A_TURN - 1]
        talk.connection.connection_lost(None)
        with pytest.raises(Gone):
            await last.write(b"abc")
        assert not talk.wire.sent

    talk(script, wait)


def test_long_heads_take_as_many_turns_as_they_take_long_to_read() -> None:
    long = b"\x00\x06x-long" + b"\x7f" + hpack.hpack.encode_integer(4_000, 7)[1:] + b"v" * 4_000

    async def script(talk: Talk) -> None:
        heads = [
            frame(frames.HEADERS, END_HEADERS, 1 + 2 * n, PLAIN_HEAD + long) for n in range(10)
        ]
        talk.raw(b"".join(heads))
        for turns in range(1, 11):
            assert len(talk.connection.calls) == turns
            await asyncio.sleep(0)
        assert talk.wire.reading

    talk(script, wait)
