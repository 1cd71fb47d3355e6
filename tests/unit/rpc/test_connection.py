"""One HTTP/2 connection of the gRPC server, spoken with by another implementation of HTTP/2.

**Source:** RFC 9113; gRPC, doc/PROTOCOL-HTTP2.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import h2.events
import h2.settings
import pytest

from epp.rpc import connection, frames
from epp.rpc.call import WINDOW, Call
from epp.rpc.connection import Methods
from epp.rpc.frames import Fault, frame
from epp.rpc.status import Code
from tests.support.rpc import Talk, message
from tests.support.serving import eventually

PATH = "/a.B/Do"


async def echo(call: Call) -> None:
    while isinstance(data := await call.read(), bytes):
        await call.write(data)


def talk(
    script: Callable[[Talk], Awaitable[None]],
    methods: Methods | None = None,
    *,
    most: int = 2**20,
    begun: bool = True,
) -> None:
    async def main() -> None:
        await script(Talk(methods or {PATH: echo}, most=most, begun=begun))

    asyncio.run(main())


def broken(talk: Talk, fault: Fault) -> bool:
    return talk.seen(h2.events.ConnectionTerminated, lambda event: event.error_code == fault)


# --- calls -------------------------------------------------------------------------


@pytest.mark.parametrize("slowly", [False, True], ids=["at once", "byte by byte"])
def test_messages_come_back_and_the_call_ends_well(*, slowly: bool) -> None:
    async def script(talk: Talk) -> None:
        stream = talk.open()
        talk.client.send_data(stream, message(b"") + message(b"abc") + message(b"d" * 300)[:100])
        talk.client.send_data(stream, message(b"d" * 300)[100:], end_stream=True)
        talk.pump(slowly=slowly)
        await talk.settle()
        assert talk.messages(stream) == message(b"") + message(b"abc") + message(b"d" * 300)
        assert talk.status(stream) == ("0", "")
        assert not talk.seen(h2.events.StreamReset)
        assert not talk.connection.calls

    talk(script)


def test_padding_priorities_and_trailers_are_understood() -> None:
    async def script(talk: Talk) -> None:
        stream = talk.open(priority_weight=3, priority_depends_on=0, priority_exclusive=False)
        talk.client.send_data(stream, message(b"abc"), pad_length=17)
        talk.client.send_headers(stream, [("x-more", "1")], end_stream=True)
        talk.pump()
        await talk.settle()
        assert talk.messages(stream) == message(b"abc")
        assert talk.status(stream) == ("0", "")

    talk(script)


def test_a_head_may_come_in_parts_and_its_metadata_is_read() -> None:
    told: list[tuple[str, str]] = []

    async def keep(call: Call) -> None:
        told.extend(call.invocation_metadata())

    async def script(talk: Talk) -> None:
        long = "v" * 10_000
        talk.client.max_outbound_frame_size = 4_000  # the client splits what is over a frame
        stream = talk.open(("epp-pool", "chat"), ("x-long", long), ends=True)
        talk.pump(slowly=True)
        await talk.settle()
        assert talk.status(stream) == ("0", "")
        assert ("epp-pool", "chat") in told
        assert ("x-long", long) in told

    talk(script, {PATH: keep})


def test_a_method_that_ends_first_stops_what_the_client_still_sends() -> None:
    async def once(call: Call) -> None:
        await call.read()
        await call.write(b"x")

    async def script(talk: Talk) -> None:
        stream = talk.open()
        talk.client.send_data(stream, message(b"1"))
        talk.pump()
        await talk.settle()
        assert talk.status(stream) == ("0", "")
        assert talk.seen(h2.events.StreamReset, lambda event: event.error_code == Fault.NO_ERROR)
        # What was on its way is late, and no error.
        assert talk.raw(frame(frames.DATA, 0, stream, message(b"2"))) == b""
        assert talk.raw(frames.window_update(stream, 5) + frames.reset(stream, Fault.CANCEL)) == b""

    talk(script, {PATH: once})


def test_a_reset_and_a_lost_connection_cancel_the_method() -> None:
    ended: list[str] = []

    async def wait(call: Call) -> None:
        try:
            await call.read()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    async def script(talk: Talk) -> None:
        first, _ = talk.open(), talk.open()
        talk.pump()
        await talk.settle()
        talk.client.reset_stream(first)
        talk.pump()
        await talk.settle()
        assert ended == ["cancelled"]
        talk.connection.connection_lost(None)
        await talk.settle()
        assert ended == ["cancelled", "cancelled"]
        assert talk.ended == 1
        assert not talk.connection.calls

    talk(script, {PATH: wait})


def test_a_call_that_is_reset_before_it_began_leaves_nothing() -> None:
    async def script(talk: Talk) -> None:
        talk.client.reset_stream(talk.open())
        talk.pump()
        await talk.settle()
        assert not talk.connection.calls

    talk(script)


@pytest.mark.parametrize(
    ("raised", "status"),
    [
        (ValueError("secret"), ("2", "unexpected error")),
        (None, ("5", "n%C3%B6 such %25 thing%0A")),
    ],
    ids=["a bug", "aborted"],
)
def test_how_a_method_fails_is_the_status(
    raised: Exception | None, status: tuple[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(call: Call) -> None:
        await call.read()
        if raised is not None:
            raise raised
        await call.abort(Code.NOT_FOUND, "nö such % thing\n")

    async def script(talk: Talk) -> None:
        stream = talk.open(ends=True)
        talk.pump()
        await talk.settle()
        assert talk.status(stream) == status

    talk(script, {PATH: fail})
    assert ("ValueError" in caplog.text) == (raised is not None)
    assert "secret" not in caplog.text


def test_a_method_that_is_not_there_and_a_request_that_is_no_call() -> None:
    async def script(talk: Talk) -> None:
        stream = talk.open(ends=True)
        talk.pump()
        assert talk.status(stream) == ("12", "there is no /a.B/Do")
        other = talk.client.get_next_available_stream_id()
        get = [(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "x")]
        talk.client.send_headers(other, get, end_stream=True)
        talk.pump()
        assert talk.seen(
            h2.events.ResponseReceived, lambda event: (":status", "415") in event.headers
        )

    talk(script, {"/other": echo})


def test_a_deadline_ends_the_call() -> None:
    async def script(talk: Talk) -> None:
        stream = talk.open(("grpc-timeout", "20m"))

        async def late() -> bool:
            talk.pump()
            return talk.status(stream) == ("4", "the call took too long")

        await eventually(late)
        assert not talk.connection.calls

    talk(script)


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (message(b"x" * 101), "8"),
        (message(b"x", compressed=True), "13"),
        (message(b"x" * 2**20)[:20], "8"),
    ],
    ids=["too large", "compressed, and not said how", "announced too large"],
)
def test_a_message_that_is_not_taken_ends_its_call_alone(sent: bytes, code: str) -> None:
    async def script(talk: Talk) -> None:
        stream, other = talk.open(), talk.open()
        talk.client.send_data(stream, sent)
        talk.client.send_data(other, message(b"y" * 100), end_stream=True)
        talk.pump()
        await talk.settle()
        status = talk.status(stream)
        assert status is not None
        assert status[0] == code
        assert talk.status(other) == ("0", "")

    talk(script, most=100)


# --- windows -----------------------------------------------------------------------


def test_a_message_is_sent_as_the_client_lets_it() -> None:
    async def script(talk: Talk) -> None:
        talk.client.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 10})
        talk.pump()
        stream = talk.open()
        talk.client.send_data(stream, message(b"x" * 95), end_stream=True)
        talk.pump()
        await talk.settle()
        assert len(talk.messages(stream)) == 10
        talk.client.increment_flow_control_window(40, stream)
        await talk.settle()
        assert len(talk.messages(stream)) == 50
        talk.client.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 200})
        await talk.settle()
        assert talk.messages(stream) == message(b"x" * 95)
        assert talk.status(stream) == ("0", "")
        assert not talk.connection.blocked

    talk(script)


def test_all_calls_share_the_window_of_their_connection() -> None:
    async def script(talk: Talk) -> None:
        streams = [talk.open(), talk.open()]
        for stream in streams:
            talk.client.send_data(stream, message(b"x" * 16_000))
            talk.client.send_data(stream, message(b"x" * 16_000))
            talk.client.send_data(stream, message(b"x" * 16_000), end_stream=True)
            talk.pump()
        await talk.settle()
        came = sum(len(talk.messages(stream)) for stream in streams)
        assert came == 65_535
        assert talk.status(streams[1]) is None
        talk.client.increment_flow_control_window(100_000)
        await talk.settle()
        assert [len(talk.messages(stream)) for stream in streams] == [48_015, 48_015]
        assert [talk.status(stream) for stream in streams] == [("0", "")] * 2

    talk(script)


def test_nothing_is_written_while_what_was_sent_has_not_left() -> None:
    async def script(talk: Talk) -> None:
        stream = talk.open()
        talk.pump()
        talk.connection.pause_writing()
        talk.client.send_data(stream, message(b"abc"), end_stream=True)
        await talk.settle()
        assert talk.messages(stream) == b""
        talk.connection.resume_writing()
        await talk.settle()
        assert talk.messages(stream) == message(b"abc")
        assert talk.status(stream) == ("0", "")

    talk(script)


def test_a_method_that_does_not_read_stops_the_client_until_it_does() -> None:
    go_on = asyncio.Event()

    async def slow(call: Call) -> None:
        await go_on.wait()
        while isinstance(await call.read(), bytes):
            pass

    async def script(talk: Talk) -> None:
        stream = talk.open()
        sent = 0
        while (room := min(talk.client.local_flow_control_window(stream), 16_384)) > 5:
            assert sent <= 3 * WINDOW, "what is not read must be bounded"
            talk.client.send_data(stream, message(b"x" * (room - 5)))
            sent += room
            talk.pump()
        assert sent >= WINDOW
        go_on.set()
        await talk.settle()
        assert talk.client.local_flow_control_window(stream) > 0  # what was read is let in again

    talk(script, {PATH: slow})


def test_a_client_that_sends_more_than_it_may_loses_its_call() -> None:
    async def wait(call: Call) -> None:
        await asyncio.Event().wait()

    async def script(talk: Talk) -> None:
        stream = talk.open()
        talk.pump()
        full = message(b"x" * (frames.MOST_PAYLOAD - 5))
        for _ in range(3 * WINDOW // len(full)):
            talk.connection.data_received(frame(frames.DATA, 0, stream, full))
        assert not talk.connection.calls.get(stream) or talk.connection.calls[stream].closed

    talk(script, {PATH: wait})


# --- faults ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "fault"),
    [
        (frames.head_of(frames.DATA, 0, 1, 16_385), Fault.FRAME_SIZE_ERROR),
        (frame(frames.DATA, 0, 1, b"abc"), Fault.PROTOCOL_ERROR),
        (frame(frames.DATA, 0, 0, b"abc"), Fault.PROTOCOL_ERROR),
        (frame(frames.HEADERS, frames.END_HEADERS, 2, b"\x82"), Fault.PROTOCOL_ERROR),
        (frame(frames.HEADERS, frames.END_HEADERS, 1, b"\xff\xff"), Fault.COMPRESSION_ERROR),
        (frame(frames.HEADERS, frames.PADDED, 1, b"\x05abc"), Fault.PROTOCOL_ERROR),
        (frame(frames.HEADERS, frames.WITH_PRIORITY, 1, b"abc"), Fault.FRAME_SIZE_ERROR),
        (frame(frames.HEADERS, 0, 1, b"a") + frame(frames.PING, 0, 0, b"8" * 8),
         Fault.PROTOCOL_ERROR),
        (frame(frames.HEADERS, 0, 1, b"a") + frame(frames.CONTINUATION, 0, 3, b"b"),
         Fault.PROTOCOL_ERROR),
        (frame(frames.HEADERS, 0, 1, b"a")
         + frame(frames.CONTINUATION, 0, 1, b"b" * 16_384) * 9, Fault.ENHANCE_YOUR_CALM),
        (frame(frames.CONTINUATION, 0, 1, b"b"), Fault.PROTOCOL_ERROR),
        (frame(frames.RST_STREAM, 0, 1, b"\0" * 4), Fault.PROTOCOL_ERROR),
        (frame(frames.RST_STREAM, 0, 1, b"\0"), Fault.FRAME_SIZE_ERROR),
        (frame(frames.SETTINGS, 0, 0, b"\0"), Fault.FRAME_SIZE_ERROR),
        (frames.settings({frames.INITIAL_WINDOW_SIZE: 2**31}), Fault.FLOW_CONTROL_ERROR),
        (frames.settings({frames.MAX_FRAME_SIZE: 100}), Fault.PROTOCOL_ERROR),
        (frame(frames.PUSH_PROMISE, 0, 1, b"\0" * 4), Fault.PROTOCOL_ERROR),
        (frame(frames.PING, 0, 0, b"123"), Fault.FRAME_SIZE_ERROR),
        (frames.window_update(0, 2**31 - 1), Fault.FLOW_CONTROL_ERROR),
        (frames.window_update(0, 0), Fault.PROTOCOL_ERROR),
        (frame(frames.SETTINGS, frames.ACK, 0, b"\0" * 6), Fault.FRAME_SIZE_ERROR),
        (frame(frames.SETTINGS, 0, 1), Fault.PROTOCOL_ERROR),
        (frames.settings({frames.ENABLE_PUSH: 2}), Fault.PROTOCOL_ERROR),
        (frame(frames.PING, 0, 1, b"8" * 8), Fault.PROTOCOL_ERROR),
        (frame(frames.GOAWAY, 0, 1, b"\0" * 8), Fault.PROTOCOL_ERROR),
        (frame(frames.GOAWAY, 0, 0, b"\0" * 7), Fault.FRAME_SIZE_ERROR),
        (frame(frames.PRIORITY, 0, 0, b"\0" * 5), Fault.PROTOCOL_ERROR),
        (frame(frames.HEADERS, frames.END_HEADERS, 1, b"\x20" * 1000), Fault.COMPRESSION_ERROR),
        (frames.window_update(7, 1), Fault.PROTOCOL_ERROR),
    ],
)  # fmt: skip
def test_who_breaks_the_protocol_is_told_how_and_loses_the_connection(
    sent: bytes, fault: Fault
) -> None:
    async def script(talk: Talk) -> None:
        talk.connection.data_received(sent)
        talk.pump()
        assert broken(talk, fault)
        assert talk.wire.closed
        talk.connection.data_received(sent)  # what comes after it changes nothing

    talk(script)


def test_headers_without_end_are_refused() -> None:
    async def script(talk: Talk) -> None:
        # An indexed field of a long value, again and again: small on the wire, large once read.
        block = b"\x40\x01a\x7f\x81\x1e" + b"v" * 4000 + b"\xbe" * 30
        talk.connection.data_received(frame(frames.HEADERS, frames.END_HEADERS, 1, block))
        talk.pump()
        assert broken(talk, Fault.COMPRESSION_ERROR)

    talk(script)


@pytest.mark.parametrize("said", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01"])
def test_who_speaks_something_else_is_not_kept(said: bytes) -> None:
    async def script(talk: Talk) -> None:
        assert talk.raw(said[:1])  # the settings, which go out at once
        talk.raw(said[1:])
        assert talk.wire.closed

    talk(script, begun=False)


def test_pings_are_answered_and_frames_of_other_kinds_ignored() -> None:
    async def script(talk: Talk) -> None:
        asked = frame(frames.PING, 0, 0, b"12345678")
        assert talk.raw(asked) == frame(frames.PING, frames.ACK, 0, b"12345678")
        assert talk.raw(frame(frames.PING, frames.ACK, 0, b"12345678")) == b""
        assert talk.raw(frame(0x42, 0, 0, b"?")) == b""
        assert talk.raw(frame(frames.PRIORITY, 0, 1, b"\0" * 5)) == b""
        assert talk.raw(frame(frames.GOAWAY, 0, 0, b"\0" * 8)) == b""

    talk(script)


def test_who_asks_without_end_and_reads_nothing_is_dropped() -> None:
    async def script(talk: Talk) -> None:
        talk.connection.pause_writing()
        talk.wire.unsent = connection.MOST_UNSENT + 1
        talk.connection.data_received(frame(frames.PING, 0, 0, b"12345678"))
        assert talk.wire.closed

    talk(script)


# --- going away --------------------------------------------------------------------


def test_who_is_asked_to_leave_is_served_until_it_has_heard_of_it() -> None:
    go_on, calls = asyncio.Event(), []

    async def wait(call: Call) -> None:
        calls.append(call)
        await go_on.wait()

    async def script(talk: Talk) -> None:
        talk.connection.leave()
        stream = talk.open()  # it was on its way
        talk.raw(talk.client.data_to_send())
        talk.raw(frame(frames.PING, frames.ACK, 0, b"go away!"))
        await asyncio.sleep(0)
        assert [call.number for call in calls] == [stream]
        assert not talk.wire.closed
        go_on.set()
        await eventually(lambda: _true(talk.wire.closed))

    talk(script, {PATH: wait})


async def _true(value: bool) -> bool:
    return value


def test_who_is_asked_to_leave_and_has_nothing_open_is_let_go_once_it_has_heard() -> None:
    async def script(talk: Talk) -> None:
        assert frames.go_away(frames.MOST_WINDOW, Fault.NO_ERROR) not in talk.raw(b"")
        talk.connection.leave()
        assert frames.go_away(frames.MOST_WINDOW, Fault.NO_ERROR) in talk.raw(b"")
        assert not talk.wire.closed
        talk.raw(frame(frames.PING, frames.ACK, 0, b"go away!"))
        assert talk.wire.closed

    talk(script)


def test_what_is_open_at_the_end_is_told_so() -> None:
    async def script(talk: Talk) -> None:
        stream = talk.open()
        talk.pump()
        await talk.settle()
        talk.connection.close()
        talk.pump()
        assert talk.status(stream) == ("14", "the server is stopping")
        await talk.settle()
        assert talk.ended == 1

    talk(script)


def test_a_client_that_never_begins_is_dropped() -> None:
    async def script(talk: Talk) -> None:
        talk.connection.look()
        assert talk.wire.closed

    talk(script, begun=False)


def test_a_silent_client_is_asked_whether_it_lives_and_dropped_without_an_answer() -> None:
    async def script(talk: Talk) -> None:
        talk.pump()
        talk.pump()
        talk.connection.look()  # it has just said something
        for _ in range(2):
            talk.connection.look()
            talk.pump()  # the client hears it, and
            talk.pump()  # answers
            talk.connection.look()
            assert not talk.wire.closed
        asked = [event for event in talk.events if isinstance(event, h2.events.PingReceived)]
        assert len(asked) == 2
        talk.connection.look()
        assert not talk.wire.closed
        talk.connection.look()
        assert talk.wire.closed

    talk(script)
