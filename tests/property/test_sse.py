"""An event stream read in any pieces says what it says in one."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from epp.formats.sse import Splitter
from epp.formats.usage import Tail
from tests.support.arrivals import sample_answer

LINES = st.sampled_from(
    [b"", b"data: a", b"data:b", b"data", b": c", b"event: d", b"data: [DONE]", b"data: \xc3\xbc"]
)
ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])
STREAMS = st.lists(st.tuples(LINES, ENDS)).map(lambda ls: b"".join(a + b for a, b in ls))


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    at = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[a:b] for a, b in itertools.pairwise(at)]


@given(STREAMS, st.lists(st.integers(0, 10_000)))
def test_any_split_gives_the_same_events(stream: bytes, cuts: list[int]) -> None:
    splitter = Splitter()
    events = [event for piece in pieces(stream, cuts) for event in splitter.feed(piece)]
    assert events == Splitter().feed(stream)


@given(STREAMS, st.booleans())
def test_byte_by_byte_gives_the_same_events(stream: bytes, mark: bool) -> None:
    stream = b"\xef\xbb\xbf" * mark + stream
    splitter = Splitter()
    events = [event for byte in stream for event in splitter.feed(bytes([byte]))]
    assert events == Splitter().feed(stream)


@given(st.lists(st.binary(max_size=50)))
def test_no_bytes_break_the_splitter_or_outgrow_it(data: list[bytes]) -> None:
    splitter = Splitter(max_event_bytes=30)
    for piece in data:
        assert all(len(event) <= 30 for event in splitter.feed(piece))


@given(st.lists(st.integers(0, 10_000)), st.sampled_from(["chat", "chat_stream", "messages_api"]))
def test_usage_does_not_depend_on_the_split(cuts: list[int], name: str) -> None:
    answer = sample_answer(name)
    whole, split = Tail(), Tail()
    whole.feed(answer)
    for piece in pieces(answer, cuts):
        split.feed(piece)
    assert split.usage() == whole.usage() is not None


@given(st.binary())
def test_no_answer_breaks_usage(answer: bytes) -> None:
    tail = Tail(tail_bytes=8, head_bytes=4)
    tail.feed(answer)
    assert tail.usage() is None
