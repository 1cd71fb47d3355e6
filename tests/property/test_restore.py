"""A restored name is the same edit on an answer however the answer is cut."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.formats.splice import RestoredName, restored_name

SENT, ASKED = "prïvate/model", 'public "name"'
TEXT = st.sampled_from([SENT, "model", '"model":"', '"model":"' + SENT + '"', "\\", '\\"', "x", ""])
JSON = st.recursive(
    st.none() | st.integers() | TEXT,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["model", "models", "a"]), inner, max_size=3)
    ),
    max_leaves=12,
)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    ends = sorted({place % (len(data) + 1) for place in places} | {0, len(data)})
    return [data[start:end] for start, end in itertools.pairwise(ends)] or [b""]


def restore(pieces: list[bytes]) -> bytes:
    name = RestoredName(SENT, ASKED)
    last = len(pieces) - 1
    return b"".join(name.feed(piece, ends=i == last) for i, piece in enumerate(pieces))


def renamed(value: Any) -> Any:
    """The same document with every model's name restored."""
    if isinstance(value, list):
        return [renamed(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        key: ASKED if (key, inner) == ("model", SENT) else renamed(inner)
        for key, inner in value.items()
    }


@given(JSON, st.booleans(), st.sampled_from([None, 1]), st.lists(st.integers(0, 10_000)))
def test_names_and_nothing_else_change_wherever_the_answer_is_cut(
    document: Any, ascii_only: bool, indent: int | None, places: list[int]
) -> None:
    answer = json.dumps(document, ensure_ascii=ascii_only, indent=indent).encode()
    assert json.loads(restore(cut(answer, places))) == renamed(document)


@given(st.binary(), st.lists(st.integers(0, 100)))
def test_what_is_no_json_passes_as_it_is(data: bytes, places: list[int]) -> None:
    assert restore(cut(data, places)) == data


@given(st.lists(st.sampled_from([b'"', b'"model"', b":", b" ", b'"pr', b"\\", b"x"])))
def test_no_more_than_one_pair_is_held_back(pieces: list[bytes]) -> None:
    name, given_, out = RestoredName("private", "public"), 0, 0
    for piece in pieces:
        given_ += len(piece)
        out += len(name.feed(piece, ends=False))
        assert given_ - out < len('"model"') + 17 + len('"private"')
    assert out + len(name.feed(b"", ends=True)) == given_


def test_whole_events_are_never_held_back() -> None:
    event = b'data: {"id":"1","model":"private","choices":[]}\n\n'
    name = RestoredName("private", "public")
    assert name.feed(event, ends=False) == event.replace(b"private", b"public")


@pytest.mark.parametrize(
    ("sent", "asked", "headers", "restores"),
    [
        ("a", "b", {"content-type": "application/json"}, True),
        ("a", "b", {"content-type": "text/event-stream; charset=utf-8"}, True),
        ("a", "b", {"content-type": "audio/wav"}, False),
        ("a", "b", {"content-type": "application/json", "content-encoding": "gzip"}, False),
        ("a", "a", {"content-type": "application/json"}, False),
        ("", "b", {"content-type": "application/json"}, False),
        ("a", "", {"content-type": "application/json"}, False),
    ],
)
def test_only_readable_answers_to_rewritten_requests_are_touched(
    sent: str, asked: str, headers: dict[str, str], *, restores: bool
) -> None:
    assert (restored_name(sent, asked, headers) is not None) is restores
