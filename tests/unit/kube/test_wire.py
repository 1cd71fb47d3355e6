"""Pages, events and lines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace

import msgspec
import pytest

from epp.kube import wire
from epp.kube.copy import About
from epp.kube.errors import KubeError


def lines_of(*pieces: bytes) -> list[bytes]:
    """What a watch that arrives in these pieces yields."""

    async def arrive() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    async def read() -> list[bytes]:
        answer = SimpleNamespace(content=SimpleNamespace(iter_any=arrive), connection=None)
        return [line async for line in wire.lines("watch", answer)]

    return asyncio.run(read())


@pytest.mark.parametrize(
    "pieces",
    [
        (b"one\ntwo\nthree\n",),
        (b"one\n", b"two\n", b"three\n"),
        (b"o", b"n", b"e", b"\ntw", b"o\nthree", b"\n"),
        (b"one\ntwo", b"\n", b"three\n"),
    ],
)
def test_lines_are_whole_however_they_arrive(pieces: tuple[bytes, ...]) -> None:
    assert lines_of(*pieces) == [b"one", b"two", b"three"]


def test_the_beginning_of_a_line_is_no_line() -> None:
    assert lines_of(b"one\ntw") == [b"one"]
    assert lines_of(b"") == []


def test_a_line_longer_than_any_object_is_refused() -> None:
    piece = b"x" * (1 << 20)
    with pytest.raises(KubeError, match="16777216 bytes"):
        lines_of(*[piece] * 17)


@pytest.mark.parametrize("metadata", ["{}", '{"resourceVersion": ""}'])
def test_a_list_without_a_version_cannot_be_watched_from(metadata: str) -> None:
    with pytest.raises(KubeError, match="no resourceVersion"):
        wire.decode_page("list", f'{{"metadata": {metadata}, "items": []}}'.encode())


def test_a_list_of_nothing_may_be_null() -> None:
    page = wire.decode_page("list", b'{"metadata": {"resourceVersion": "1"}, "items": null}')
    assert not page.items


@pytest.mark.parametrize("body", [b"", b"<html>", b'{"items": []}', b"\xff\xfe"])
def test_what_is_no_list_is_an_error(body: bytes) -> None:
    with pytest.raises(KubeError, match="cannot be read") as caught:
        wire.decode_page("list", body)
    assert caught.value.reason == "answer"


def test_a_bookmark_has_a_version_only() -> None:
    line = b'{"type":"BOOKMARK","object":{"kind":"Pod","metadata":{"resourceVersion":"7","creationTimestamp":null},"spec":{"containers":null},"status":{}}}'
    event = wire.decode_event("watch", line)
    assert event.type == "BOOKMARK"
    assert wire.decode_about("watch", event.object) == About("", "", "", "7")


def test_an_objects_key_is_its_namespace_and_name() -> None:
    item = msgspec.Raw(b'{"metadata":{"name":"a","namespace":"n","uid":"u"},"spec":{"x":[1]}}')
    assert wire.decode_about("list", item).key == ("n", "a")
