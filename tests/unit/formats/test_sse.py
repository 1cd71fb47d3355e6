"""Event streams, split. Out: any split of any stream, which is tests/property/test_sse.py."""

from __future__ import annotations

import pytest

from epp.formats.sse import DONE, Splitter
from tests.support.arrivals import sample_answer


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        pytest.param(b"data: a\n\ndata: b\n\n", [b"a", b"b"], id="LF"),
        pytest.param(b"data: a\r\n\r\ndata: b\r\n\r\n", [b"a", b"b"], id="CRLF"),
        pytest.param(b"data: a\r\rdata: b\r\r", [b"a", b"b"], id="CR"),
        pytest.param(b"data: a\r\n\ndata: b\n\r\n", [b"a", b"b"], id="mixed"),
        pytest.param(b"data: a\ndata: b\n\n", [b"a\nb"], id="two lines"),
        pytest.param(b"data:a\n\ndata:  b\n\n", [b"a", b" b"], id="one space is dropped"),
        pytest.param(b"data\n\n", [b""], id="no colon"),
        pytest.param(b": ping\n\ndata: a\n\n", [b"a"], id="comment"),
        pytest.param(b"event: x\nid: 1\nretry: 5\ndata: a\n\n", [b"a"], id="other fields"),
        pytest.param(b"event: x\n\n", [], id="no data"),
        pytest.param(b"\xef\xbb\xbfdata: a\n\n", [b"a"], id="byte order mark"),
        pytest.param(b"data: a\n\ndata: b\n", [b"a"], id="unfinished"),
        pytest.param(b"data: a: b\n\n", [b"a: b"], id="colon in data"),
        pytest.param(b"\n\n\ndata: a\n\n\n\n", [b"a"], id="more empty lines"),
        pytest.param(b"", [], id="nothing"),
    ],
)
def test_streams(stream: bytes, events: list[bytes]) -> None:
    assert Splitter().feed(stream) == events


def test_a_line_feed_that_comes_late_ends_no_second_line() -> None:
    splitter = Splitter()
    pieces = [b"data: a\r", b"\n", b"data: b\r", b"\n\r", b"\n"]
    assert [splitter.feed(piece) for piece in pieces] == [[], [], [], [b"a\nb"], []]


def test_an_event_that_is_too_long_is_skipped_and_counted() -> None:
    splitter = Splitter(max_event_bytes=20)
    stream = b"data: " + b"x" * 50 + b"\ndata: y\n\ndata: a\n\n"
    assert splitter.feed(stream) == [b"a"]
    assert splitter.skipped == 1


def test_an_event_may_grow_too_long_line_by_line() -> None:
    splitter = Splitter(max_event_bytes=20)
    for _ in range(10):
        assert splitter.feed(b"data: xx\n") == []
    assert splitter.feed(b"\ndata: a\n\n") == [b"a"]
    assert splitter.skipped == 1


def test_comments_may_go_on_for_ever() -> None:
    splitter = Splitter(max_event_bytes=20)
    for _ in range(100):
        splitter.feed(b": still here\n")
    assert splitter.feed(b"data: a\n\n") == [b"a"]
    assert splitter.skipped == 0


def test_a_real_stream_ends_with_done() -> None:
    events = Splitter().feed(sample_answer("chat_stream"))
    assert len(events) == 7
    assert events[-1] == DONE
    assert b'"usage":{' in events[-2]
