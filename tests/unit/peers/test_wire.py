"""News as bytes: what one picker packs another reads, whatever its version. Out: sockets."""

from __future__ import annotations

import contextlib
import math
import struct
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.feedback.entry import Entry
from epp.formats.usage import MOST
from epp.model import EndpointId, Outcome, Usage
from epp.peers import wire
from epp.peers.news import Batch, Computed, Event, Logged, Logs, Over, Sent
from epp.peers.v1 import peers_pb2 as pb

TOKENS = st.integers(0, 2**32 - 1)
TIMES = st.floats(allow_nan=False, allow_infinity=False)
NAMES = st.text(max_size=20)
NUMBERS = st.integers(0, 2**64 - 1)
SENT = st.builds(
    Sent,
    number=NUMBERS, at=TIMES, endpoint=NAMES, prompt_tokens=TOKENS, uncached=TOKENS, output=TOKENS,
    streamed=st.booleans(), over=st.booleans(), facts=st.dictionaries(NAMES, st.binary()),
)  # fmt: skip
SPLIT = st.builds(
    lambda sent, prefill, tokens: Sent(
        sent.number, sent.at, sent.endpoint, sent.prompt_tokens, 0, prefill, tokens,
    ),
    SENT, NAMES.filter(bool), TOKENS,
)  # fmt: skip
OVER = st.builds(
    Over,
    number=NUMBERS, first_seconds=st.none() | TIMES, seconds=TIMES, completed=st.booleans(),
    prompt_tokens=st.none() | TOKENS, cached_tokens=st.none() | TOKENS,
)  # fmt: skip
COUNTS = st.none() | st.integers(0, MOST - 1)
SECONDS = st.none() | st.floats(0, allow_nan=False, allow_infinity=False)
WORDS = st.none() | st.integers(1, 2**32 - 1)
LOGGED = st.builds(
    Logged,
    st.builds(
        Entry,
        request_id=st.just(""), name=st.text(st.characters(max_codepoint=127), min_size=1),
        outcome=st.sampled_from(Outcome), status=WORDS, served=NAMES, attempts=WORDS,
        response_bytes=st.none() | NUMBERS, first_byte_seconds=SECONDS, seconds=SECONDS,
        usage=st.none() | st.builds(Usage, COUNTS, COUNTS, COUNTS).filter(lambda u: u != Usage()),
        streamed=st.booleans(), flags=NAMES,
    ),
)  # fmt: skip
LEFT = st.builds(
    lambda logged, number: Logged(msgspec.structs.replace(logged.entry, name=""), number),
    LOGGED, NUMBERS,
)  # fmt: skip
EVENTS = st.lists(SENT | SPLIT | OVER | LOGGED | LEFT | st.builds(Computed, NUMBERS), max_size=80)
LOGS = st.builds(Logs, TOKENS, NUMBERS)


def read(messages: list[bytes]) -> list[Event]:
    return [e for data in messages for events in wire.unpack(data).slices() for e in events]


@given(EVENTS, TIMES, LOGS)
def test_what_is_packed_is_read_again_in_its_order(
    events: list[Any], now: float, logs: Logs
) -> None:
    messages = list(wire.pack("me", Batch(now, tuple(events)), logs, past_told=True))
    assert read(messages) == events
    news = [wire.unpack(data) for data in messages]
    assert {(each.instance, each.now, each.logs) for each in news} == {("me", now, logs)}
    assert [each.past_told for each in news] == [False] * (len(news) - 1) + [True]
    assert sum(map(len, news)) == len(events)


def entry(number: int) -> Entry:
    return Entry(
        request_id="", name=f"{number:028x}", outcome=Outcome.FAILED, status=503,
        served=f"10.0.0.{number % 100}:8000", response_bytes=2**40, usage=Usage(8000, 900, 7000),
        first_byte_seconds=0.1, seconds=2.5, streamed=True, attempts=2,
        flags="upstream_remote_reset",
    )  # fmt: skip


def test_many_events_go_into_many_messages_of_bounded_size() -> None:
    facts = {"prefix": bytes(16 * 1024)}  # a prompt of 2,048 blocks
    sent = [Sent(i, 1.0, EndpointId("a"), 5, 5, facts=facts) for i in range(20)]
    sizes = [len(data) for data in wire.pack("me", Batch(1.0, tuple(sent)))]
    assert len(sizes) >= 7
    assert max(sizes) < wire.MOST_BYTES + 17 * 1024
    small = tuple(Computed(i) for i in range(10_000))
    assert max(map(len, wire.pack("me", Batch(1.0, small)))) < wire.MOST_BYTES
    entries = tuple(Logged(entry(i)) for i in range(1000))
    messages = list(wire.pack("me", Batch(1.0, entries)))
    assert max(map(len, messages)) < 1.2 * wire.MOST_BYTES
    assert sum(map(len, messages)) < 1000 * 120


def test_names_are_told_once_a_message() -> None:
    name = "3a3c9a6e-7d2b-4c7e-9b3a-000000000000:8000"
    sent = tuple(Sent(i, 1.0, EndpointId(name), 5, 5) for i in range(100))
    (data,) = wire.pack("me", Batch(1.0, sent))
    assert data.count(name.encode()) == 1
    assert len(data) < 100 * 32


def test_events_are_read_some_at_a_time() -> None:
    (data,) = wire.pack("me", Batch(1.0, tuple(Computed(i) for i in range(100))))
    assert [len(each) for each in wire.unpack(data).slices()] == [32, 32, 32, 4]
    long = Sent(1, 1.0, EndpointId("a"), 1, 1, facts={"prefix": bytes(10_000)})  # takes a while
    (data,) = wire.pack("me", Batch(1.0, (long, long, long, Computed(1))))
    assert [len(each) for each in wire.unpack(data).slices()] == [2, 2]


def test_a_heartbeat_says_who_and_when() -> None:
    news = wire.unpack(wire.heartbeat("me", 5.0, Logs(2, 3)))
    assert (news.instance, news.now, len(news), news.past_told) == ("me", 5.0, 0, False)
    assert news.logs == Logs(2, 3)


@pytest.mark.parametrize(
    ("given_", "told"), [(-1, 0), (2**32, 2**32 - 1), (10**30, 2**32 - 1)],
)  # fmt: skip
def test_tokens_beyond_what_a_message_holds_are_the_nearest_that_it_does(
    given_: int, told: int
) -> None:
    events = (
        Sent(1, 1.0, EndpointId("a"), given_, given_),
        Over(1, None, 1.0, True, given_, given_),
    )
    sent, over = read(list(wire.pack("me", Batch(1.0, events))))
    assert isinstance(sent, Sent)
    assert isinstance(over, Over)
    assert {sent.prompt_tokens, sent.uncached, over.prompt_tokens, over.cached_tokens} == {told}


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for reads in (lambda: read([data]), lambda: wire.unpack_request(data)):
        with contextlib.suppress(ValueError):
            reads()


@given(EVENTS, st.integers(0, 10_000), st.integers(1, 255))
def test_a_byte_that_is_changed_is_read_or_refused(events: list[Any], at: int, by: int) -> None:
    data = bytearray(next(wire.pack("me", Batch(1.0, tuple(events)))))
    data[at % len(data)] ^= by
    try:
        found = read([bytes(data)])
    except ValueError:
        return
    for event in found:
        if isinstance(event, Sent):
            assert math.isfinite(event.at)
        if isinstance(event, Over):
            assert math.isfinite(event.seconds)
        if isinstance(event, Logged):
            told = event.entry
            assert told.name.isascii()
            assert told.seconds is None or 0 <= told.seconds < math.inf


def logged(**facts: Any) -> pb.News:
    return pb.News(instance="me", events=[pb.Event(logged=pb.Logged(**facts))])


@pytest.mark.parametrize(
    "message",
    [
        pb.News(now=1.0),
        pb.News(instance="me", now=math.nan),
        pb.News(instance="me", events=[pb.Event(sent=pb.Sent(endpoint=0))]),
        pb.News(instance="me", names=["a"], events=[pb.Event(sent=pb.Sent(endpoint=0, prefill=1))]),
        pb.News(instance="me", names=["a"], events=[pb.Event(sent=pb.Sent(at=math.inf))]),
        pb.News(instance="me", events=[pb.Event(over=pb.Over(seconds=math.nan))]),
        pb.News(instance="me", events=[pb.Event(over=pb.Over(first_seconds=-math.inf))]),
        logged(),
        logged(exchange="é"),
        logged(exchange="x" * 128),
        logged(exchange="x", request=1),
        logged(exchange="x", served=0),
        logged(exchange="x", flags=7),
        logged(exchange="x", seconds=math.nan),
        logged(exchange="x", seconds=-0.5),
        logged(exchange="x", first_seconds=math.inf),
        logged(exchange="x", prompt_tokens=MOST),
        logged(exchange="x", completion_tokens=1, cached_tokens=2**64 - 1),
    ],
    ids=["nobody", "no time", "no endpoint", "no prefill", "sent never", "over never", "first never",
         "an entry of nothing", "of no name", "of a long name", "of two", "served by none", "cut off by none",
         "no duration", "one below 0", "a first byte never", "too many tokens", "far too many"],
)  # fmt: skip
def test_what_cannot_be_is_refused(message: pb.News) -> None:
    with pytest.raises(ValueError):
        read([message.SerializeToString()])


def _field(number: int, data: bytes) -> bytes:
    """A field of a length, as protobuf writes it."""
    return bytes([number << 3 | 2, len(data)]) + data


def test_a_newer_picker_is_understood_as_far_as_it_goes() -> None:
    """Fields and kinds of events that are not known are passed over."""
    unknown = _field(15, b"later") + bytes([14 << 3 | 1]) + struct.pack("<d", 1.0)
    known = pb.Sent(number=7, at=1.0).SerializeToString() + unknown
    events = [_field(1, known) + unknown, _field(9, b"a kind of its own"), b"\x10\x07"]
    data = pb.News(version=99, instance="me", now=1.0, names=["a"]).SerializeToString()
    data += b"".join(_field(5, event) for event in events) + unknown
    assert read([data]) == [Sent(7, 1.0, EndpointId("a"), 0, 0), Computed(7)]
    asked = pb.FollowRequest(version=99, instance="x", pool="p").SerializeToString() + unknown
    assert wire.unpack_request(asked) == wire.Asked("x", "p")


def test_a_request_to_follow_is_read_again() -> None:
    heard = (wire.Heard("a", 2**40, now=True), wire.Heard("b", 0))
    asked = wire.Asked("me", "pool", heard)
    assert wire.unpack_request(wire.pack_request(asked)) == asked
