"""Who is asked for usage unasked, and what engines' own streams look like without it again."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from epp.formats.injected import MOST_BYTES, MOST_HELD, WithoutUsage, asking_usage, without_usage
from epp.sim import openai
from epp.sim.asked import Asked
from tests.support import build
from tests.support.arrivals import sample_answer

EVENTS = {"content-type": "text/event-stream; charset=utf-8"}


def asking(format: str = "chat", *, streaming: bool = True, **fields: Any) -> bytes | None:
    body = json.dumps({"model": "m", "stream": streaming, **fields}).encode()
    return asking_usage(build.request(body=body, format=format, streaming=streaming))


def restored(answer: bytes) -> bytes:
    return WithoutUsage().feed(answer, ends=True)


@pytest.mark.parametrize("format", ["chat", "completions"])
def test_a_stream_that_says_nothing_of_usage_asks_for_it(format: str) -> None:
    assert asking(format) == (
        b'{"model": "m", "stream": true,"stream_options":{"include_usage":true}}'
    )


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"include_usage": None}])
def test_options_that_ask_for_nothing_are_replaced(options: object) -> None:
    assert asking(stream_options=options, user="u") == (
        b'{"model": "m", "stream": true, "stream_options": {"include_usage":true}, "user": "u"}'
    )


@pytest.mark.parametrize(
    "options",
    [
        {"include_usage": True},
        {"include_usage": "yes"},
        {"continuous_usage_stats": True},
        {"include_usage": False, "include_obfuscation": False},
        [],
        "x",
    ],
    ids=json.dumps,
)
def test_options_that_say_anything_else_are_left_alone(options: object) -> None:
    assert asking(stream_options=options) is None


@pytest.mark.parametrize(
    "fields",
    [{"n": 2}, {"n": "2"}, {"prompt": ["a", "b"]}, {"prompt": [[1], [2]]}],
    ids=json.dumps,
)
def test_a_request_for_several_choices_is_left_alone(fields: dict[str, object]) -> None:
    assert asking("completions", **fields) is None


def test_a_request_that_does_not_stream_or_of_another_api_is_left_alone() -> None:
    assert asking(streaming=False) is None
    assert asking("responses") is None
    assert asking("opaque") is None


def test_a_body_that_cannot_be_read_is_left_alone() -> None:
    for body in (b"", b"[]", b'{"stream":true', b'{"n":"\xff"}', b"[" * 100_000):
        assert asking_usage(build.request(body=body, format="chat", streaming=True)) is None


def test_a_very_large_request_is_left_alone() -> None:
    for size, asks in ((MOST_BYTES, True), (MOST_BYTES + 1, False)):
        body = b'{"stream":true}'.rjust(size)
        found = asking_usage(build.request(body=body, format="chat", streaming=True))
        assert (found is not None) is asks


def test_a_byte_order_mark_stays() -> None:
    body = b"\xef\xbb\xbf" + b'{"stream":true,"stream_options":null}\n'
    found = asking_usage(build.request(body=body, format="chat", streaming=True))
    assert found == b"\xef\xbb\xbf" + b'{"stream":true,"stream_options":{"include_usage":true}}\n'


def test_the_last_of_several_options_counts_as_it_does_for_engines() -> None:
    body = b'{"stream_options":{"include_usage":true},"stream":true,"stream_options":null}'
    found = asking_usage(build.request(body=body, format="chat", streaming=True))
    assert found is not None
    assert json.loads(found)["stream_options"] == {"include_usage": True}


@pytest.mark.parametrize(
    ("headers", "edits"),
    [
        (EVENTS, True),
        ({"content-type": "application/json"}, False),
        ({}, False),
        (EVENTS | {"content-encoding": "gzip"}, False),
    ],
)
def test_only_readable_event_streams_are_touched(headers: dict[str, str], *, edits: bool) -> None:
    assert (without_usage(headers) is not None) is edits


@pytest.mark.parametrize("name", ["chat_stream", "completion_stream"])
def test_a_captured_stream_loses_its_usage_and_keeps_its_fingerprint(name: str) -> None:
    events = sample_answer(name).split(b"\n\n")
    *tokens, finish, usage, done, _ = events
    assert b'"usage"' in usage
    stamp = b',"system_fingerprint":"vllm-0.32.0-38950b13"}'
    assert usage.endswith(stamp)
    assert restored(sample_answer(name)) == b"\n\n".join([*tokens, finish[:-1] + stamp, done, b""])


def test_a_captured_stream_without_usage_stays_as_it_is() -> None:
    answer = sample_answer("chat_stream_nousage")
    assert restored(answer) == answer


def test_the_finishing_event_is_written_as_a_captured_stream_without_usage_has_it() -> None:
    asked, not_asked = (
        [json.loads(event[6:]) for event in answer.split(b"\n\n")[:-2]]
        for answer in (
            restored(sample_answer("chat_stream")),
            sample_answer("chat_stream_nousage"),
        )
    )
    assert list(asked[-1]) == list(not_asked[-1])


@pytest.mark.parametrize("api", [openai.Chat, openai.Completion])
@pytest.mark.parametrize("reason", ["stop", "length", "abort"])
def test_a_simulated_stream_is_that_of_a_client_that_did_not_ask(api: Any, reason: str) -> None:
    def answer(asked: Asked) -> bytes:
        made = api("c-1", 1_796_000_000, asked)
        spent = openai.Spent(prompt=9, output=2, cached=4)
        token, last = made.token(0, b"a", None), made.last(0, b"b", reason, spent)
        return b"".join((made.opening(spent), token, last, made.closing(spent)))

    plain = Asked("chat", "m", prompts=(), stream=True)
    asked = msgspec.structs.replace(plain, include_usage=True)
    assert answer(asked) != answer(plain)
    assert restored(answer(asked)) == answer(plain)


def test_usage_is_removed_from_a_stream_that_was_cut_off_after_it() -> None:
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":1}}\n'
    assert restored(b"data: {}\n\n" + usage) == b"data: {}\n\n"


def test_an_answer_that_ends_with_its_finishing_event_is_whole() -> None:
    finish = b'data: {"choices":[{"finish_reason":"stop"}]}\n\n'
    edit = WithoutUsage()
    assert edit.feed(finish, ends=False) == b""
    assert edit.feed(b"", ends=True) == finish
    assert restored(finish[:-1]) == finish[:-1]


def test_an_event_that_is_too_long_to_hold_goes_on_as_it_comes() -> None:
    finish = b'data: {"choices":[{"finish_reason":"stop"}]}\n\n'
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":1},"system_fingerprint":"x"}\n\n'
    long = b"data: " + b"x" * MOST_HELD
    edit = WithoutUsage()
    pieces = [finish, long[:-6], long[-6:], b"y", b"z\n", b"\n" + usage, finish + usage]
    assert [edit.feed(piece, ends=False) for piece in pieces] == [
        b"", b"", finish + long, b"y", b"z", b"\n\n",
        finish.replace(b"]}", b'],"system_fingerprint":"x"}'),
    ]  # fmt: skip


def test_an_event_with_choices_or_without_a_json_usage_stays() -> None:
    for event in (
        b'data: {"choices":[{"index":0}],"usage":{"prompt_tokens":1}}\n\n',
        b'data: {"choices":[],"usage":{"prompt_tokens":1}\n\n',
        b'data: {"choices":[],"prompt_filter_results":[]}\n\n',
        b'event: x\ndata: {"type":"message_delta","usage":{"output_tokens":1}}\n\n',
    ):
        assert restored(event) == event
