"""Frames around KV events, as the publishers of vLLM and SGLang send them."""

from __future__ import annotations

import pytest

from epp.collect.parse.kv_messages import Message, Topic, ask, read, topic

SEVEN = (7).to_bytes(8, "big")
MINUS_ONE = b"\xff" * 8


@pytest.mark.parametrize(
    ("frames", "told"),
    [
        ([b"kv@p@m", SEVEN, b"x"], "kv@p@m"),
        ([b"", SEVEN, b"x"], ""),
        ([b"", b"kv@p@m", SEVEN, b"x"], "kv@p@m"),
        ([b"", b"", SEVEN, b"x"], ""),
        ([b"\xff", SEVEN, b"x"], "\ufffd"),
        ([b"pod\0sgl-kv-epoch=1f", SEVEN, b"x"], "pod"),
    ],
    ids=["published", "replayed without topic", "replayed", "empty topic", "not text", "with more"],
)
def test_every_form_of_a_message_is_read(frames: list[bytes], told: str):
    assert read(frames) == Message(told, 7, b"x")


@pytest.mark.parametrize("frames", [[b"", MINUS_ONE, b""], [b"", b"", MINUS_ONE, b""]])
def test_an_end_mark_is_one_with_and_without_topic(frames: list[bytes]):
    message = read(frames)
    assert message is not None
    assert message.ends


def test_a_message_is_no_end_mark():
    assert not Message("", 7, b"").ends


@pytest.mark.parametrize(
    "frames",
    [[], [b"x"], [b"a", SEVEN], [b"a", b"7", b"x"], [b"a", SEVEN, b"x", b"y"],
     [b"", b"", b"", SEVEN, b"x"]],
)  # fmt: skip
def test_other_frames_are_no_message(frames: list[bytes]):
    assert read(frames) is None


def test_a_topic_of_eight_bytes_is_not_taken_for_a_number():
    assert read([b"kv@pod@m", SEVEN, b"x"]) == Message("kv@pod@m", 7, b"x")
    assert read([b"", b"kv@pod@m", SEVEN, b"x"]) == Message("kv@pod@m", 7, b"x")


def test_what_asks_for_messages_has_an_empty_frame_first():
    assert ask(258) == [b"", b"\0\0\0\0\0\0\1\2"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("kv@10.0.0.1:8000@Qwen/Qwen3", Topic("10.0.0.1:8000", "Qwen/Qwen3")),
        ("kv@pod@model@revision", Topic("pod", "model@revision")),
        ("kv-events", Topic()),
        ("", Topic()),
    ],
)
def test_a_topic_names_pod_and_model(text: str, told: Topic):
    assert topic(text) == told


def test_a_message_with_the_number_of_the_end_mark_is_none():
    last = ((1 << 64) - 1).to_bytes(8, "big")
    assert read([b"kv@a@m", last, b"payload"]) is None
    assert read([b"", b"kv@a@m", last, b"payload"]) is None
    assert read([b"", last, b""]) is not None
