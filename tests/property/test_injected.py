"""A client that did not ask for usage gets the answer it would have had, wherever it is cut."""

from __future__ import annotations

import itertools
import json

from hypothesis import given
from hypothesis import strategies as st

from epp.formats.injected import ASKS, MOST_HELD, WithoutUsage, asking_usage
from tests.support import build

USAGE = '"usage":{"prompt_tokens":9,"completion_tokens":3,"total_tokens":12}'
ASKED_FOR = f'data: {{"id":"c-1","choices":[],{USAGE}}}'
STAMP = ',"system_fingerprint":"vllm-0.32.0 \\"x\\""'
STAMPED = f'data: {{"id":"c-1","choices":[],{USAGE}{STAMP}}}'
FINISH = 'data: {"choices":[{"delta":{"content":"x"},"finish_reason":"stop"}]%s}'
TEXT = st.sampled_from(
    ["word", '"usage":{"prompt_tokens":1}', '"finish_reason":"stop"', "\n\n", "data: [DONE]", "é"]
)
#: What an engine sends a client that did not ask; some look like a usage and are none.
EVENTS = st.lists(
    st.one_of(
        TEXT.map(lambda text: f"data: {json.dumps({'choices': [{'delta': {'content': text}}]})}"),
        st.just(FINISH % ""),
        st.just(FINISH % STAMP),
        st.just(": still here"),
        st.just("data: [DONE]"),
        st.just(f'data: {{"choices":[{{"index":0}}],{USAGE}}}'),
        st.just('data: {"choices":[],"usage":null}'),
        st.just('data: {"usage":{},"choices":'),
    ),
    max_size=8,
)
ENDS = st.sampled_from(["\n", "\r\n", "\r"])
PLACES = st.lists(st.integers(0, 10_000), max_size=20)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    ends = sorted({place % (len(data) + 1) for place in places} | {0, len(data)})
    return [data[start:end] for start, end in itertools.pairwise(ends)] or [b""]


def removed(pieces: list[bytes]) -> bytes:
    edit = WithoutUsage()
    last = len(pieces) - 1
    return b"".join(edit.feed(piece, ends=i == last) for i, piece in enumerate(pieces))


def stream(events: list[str], end: str) -> bytes:
    return "".join(event + 2 * end for event in events).encode()


@given(EVENTS, ENDS, st.integers(0, 8), PLACES)
def test_the_bytes_are_those_of_a_client_that_asked_for_nothing(
    events: list[str], end: str, place: int, places: list[int]
) -> None:
    asked = [*events[:place], ASKED_FOR, *events[place:]]
    assert removed(cut(stream(asked, end), places)) == stream(events, end)


@given(EVENTS, ENDS, st.sampled_from([[], ["data: [DONE]"]]), PLACES)
def test_a_fingerprint_told_with_the_usage_is_put_back_where_the_choice_finishes(
    events: list[str], end: str, after: list[str], places: list[int]
) -> None:
    answer = stream([*events, FINISH % "", STAMPED, *after], end)
    expected = stream([*events, FINISH % STAMP, *after], end)
    assert removed(cut(answer, places)) == expected


@given(EVENTS, ENDS, PLACES)
def test_every_single_byte_may_be_a_piece(events: list[str], end: str, places: list[int]) -> None:
    answer = stream([*events, STAMPED, "data: [DONE]"], end)
    assert removed([answer[i : i + 1] for i in range(len(answer))]) == removed(cut(answer, places))


@given(st.binary(), PLACES)
def test_what_is_no_event_stream_passes_as_it_is(data: bytes, places: list[int]) -> None:
    assert removed(cut(data, places)) == data


AROUND = st.lists(st.integers(MOST_HELD - 100, MOST_HELD + 200), max_size=20)


@given(st.integers(MOST_HELD - 50, MOST_HELD + 100), ENDS, AROUND, st.booleans())
def test_what_follows_an_event_that_is_too_long_to_hold_is_still_looked_at(
    size: int, end: str, places: list[int], finishes: bool
) -> None:
    events = [FINISH % ""] * finishes + [f"data: {'x' * size}"]
    answer = stream([*events, ASKED_FOR, *events], end)
    assert removed(cut(answer, places)) == stream([*events, *events], end)


@given(EVENTS, ENDS)
def test_no_whole_event_waits_but_one_that_finishes_the_choice(events: list[str], end: str) -> None:
    edit, waiting = WithoutUsage(), b""
    for event in events:
        passed = edit.feed(stream([event], end), ends=False)
        if end == "\r":  # which may be half of a line's end
            continue
        if event == FINISH % "":
            assert passed == waiting
            waiting = stream([event], end)
        else:
            assert passed == waiting + stream([event], end)
            waiting = b""


@given(PLACES.map(lambda places: [b"x" * place for place in places]))
def test_what_is_held_back_is_bounded(pieces: list[bytes]) -> None:
    edit, given_, out = WithoutUsage(), 0, 0
    for piece in [FINISH.encode() % b"" + b"\n\n", *pieces]:
        given_ += len(piece)
        out += len(edit.feed(piece, ends=False))
        assert given_ - out <= len(FINISH) + MOST_HELD


BODIES = st.fixed_dictionaries(
    {"model": st.just("m"), "stream": st.just(True)},
    optional={
        "prompt": st.text(max_size=20) | st.just([1, 2]),
        "n": st.sampled_from([None, 1]),
        "user": st.just('"stream_options":null'),
        "stream_options": st.sampled_from([None, {}, {"include_usage": False}]),
    },
)


@given(BODIES, st.sampled_from(["", " ", "\r\n"]), st.sampled_from([None, 1]))
def test_the_field_is_added_and_not_another_byte_changes(
    document: dict[str, object], space: str, indent: int | None
) -> None:
    body = (space + json.dumps(document, indent=indent) + space).encode()
    asking = asking_usage(build.request(body=body, format="chat", streaming=True))
    assert asking is not None
    assert json.loads(asking) == {**document, "stream_options": {"include_usage": True}}
    before, _, after = asking.rpartition(ASKS)
    assert body.startswith(before.removesuffix(b',"stream_options":'))
    assert body.endswith(after)
