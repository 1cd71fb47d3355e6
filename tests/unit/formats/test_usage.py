"""Usage read from the end of answers, most of them recorded from vLLM 0.32."""

from __future__ import annotations

import gzip
import json
import time

import pytest

from epp.formats.usage import HEAD_BYTES, TAIL_BYTES, Tail
from epp.model import Usage
from tests.support.arrivals import sample_answer


def usage(answer: bytes, *, piece: int = 7) -> Usage | None:
    tail = Tail()
    for start in range(0, len(answer), piece):
        tail.feed(answer[start : start + piece])
    return tail.usage()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("chat_stream", Usage(277, 4, 256)),
        ("chat_stream_continuous", Usage(277, 3, 256)),
        ("completion_stream", Usage(265, 4, 256)),
        ("no_prompt_details", Usage(15, 4, None)),
        ("messages_api", Usage(15, 4, 0)),
        ("responses_api", Usage(15, 4, 0)),
        ("inference_generate", Usage(50, 4, 32)),
        ("emb", Usage(9, 0, None)),
        ("chat_stream_nousage", None),
        ("inference_generate_stream", None),
        ("err_unknown_model", None),
    ],
)
def test_real_answers(name: str, expected: Usage | None) -> None:
    assert usage(sample_answer(name)) == expected


def test_anthropic_streams_tell_the_prompt_first_and_the_answer_last() -> None:
    start = {"type": "message_start", "message": {"usage": {
        "input_tokens": 25, "output_tokens": 1, "cache_read_input_tokens": 16}}}  # fmt: skip
    delta = {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "ha " * 99}}
    end = {"type": "message_delta", "usage": {"output_tokens": 15}}
    events = [start, *[delta] * 500, end, {"type": "message_stop"}]
    answer = b"".join(f"event: {e['type']}\ndata: {json.dumps(e)}\n\n".encode() for e in events)
    assert len(answer) > 2 * TAIL_BYTES + HEAD_BYTES
    assert usage(answer) == Usage(25, 15, 16)


def test_a_completed_response_repeats_the_whole_answer_before_its_usage() -> None:
    response = {"output": ["x" * 300_000], "usage": {
        "input_tokens": 9, "input_tokens_details": {"cached_tokens": 8}, "output_tokens": 7},
        "user": None}  # fmt: skip
    event = {"type": "response.completed", "response": response}
    answer = b"event: response.completed\ndata: " + json.dumps(event).encode() + b"\n\n"
    assert usage(answer, piece=1_000) == Usage(9, 7, 8)


def test_usage_before_a_long_answer_is_found() -> None:
    answer = {"usage": {"prompt_tokens": 1, "completion_tokens": 2}, "choices": ["x" * 300_000]}
    assert usage(json.dumps(answer).encode(), piece=65_536) == Usage(1, 2)


def test_sglang_tells_its_counts_in_meta_info() -> None:
    answer = {"text": "a", "meta_info": {
        "id": "1", "prompt_tokens": 3, "completion_tokens": 4, "cached_tokens": 2}}  # fmt: skip
    assert usage(json.dumps(answer).encode()) == Usage(3, 4, 2)


def test_what_a_model_says_is_not_its_usage() -> None:
    said = json.dumps({"usage": {"prompt_tokens": 666}})
    answer = {"usage": {"prompt_tokens": 1, "completion_tokens": 2}, "choices": [{"text": said}]}
    assert usage(json.dumps(answer).encode()) == Usage(1, 2)


@pytest.mark.parametrize(
    "counts",
    [
        pytest.param({}, id="empty"),
        pytest.param({"type": "object", "properties": {}}, id="a schema's property"),
        pytest.param({"prompt_tokens": "5"}, id="text"),
        pytest.param({"prompt_tokens": -5, "completion_tokens": True}, id="no counts"),
        pytest.param({"prompt_tokens": 2**53, "completion_tokens": 10**400}, id="nobody's"),
        pytest.param({"prompt_tokens": 7.5, "completion_tokens": 1e400}, id="not whole"),
    ],
)
def test_a_usage_without_counts_is_none(counts: object) -> None:
    assert usage(json.dumps({"usage": counts}).encode()) is None


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"<html>usage</html>", id="html"),
        pytest.param(b'{"usage": {"prompt_tokens": 5', id="cut off"),
        pytest.param(b'{"usage": ' + b'{"a":' * 5_000, id="deep"),
        pytest.param(b'{"usage": {"a": ' + b"[" * 10_000, id="deep list"),
        pytest.param(b'"usage": {' * 3_000, id="many"),
        pytest.param(b"\xff\xfe\x00" * 10_000, id="noise"),
    ],
)
def test_what_is_no_usage_is_none(answer: bytes) -> None:
    assert usage(answer) is None


def test_b016_compressed_answers_are_skipped() -> None:
    """Field problem B016: a compressed answer broke the reading of usage on one path.

    envoyproxy/ai-gateway PR 1189.
    """
    assert usage(gzip.compress(sample_answer("chat"))) is None


def test_a_whole_count_may_be_written_as_a_fraction() -> None:
    assert usage(b'{"usage":{"prompt_tokens":7.0,"completion_tokens":3e0}}') == Usage(7, 3)


def test_memory_is_bounded() -> None:
    tail = Tail(tail_bytes=100, head_bytes=10)
    for _ in range(1_000):
        tail.feed(b"x" * 33)
        assert len(tail._kept) <= 200
    tail.feed(b"x" * 10_000)
    assert len(tail._kept) == 100
    assert len(tail._head) == 10


def test_feeding_a_token_costs_next_to_nothing() -> None:
    tail, piece = Tail(), b"data: " + b"x" * 200 + b"\n\n"
    start = time.process_time()
    for _ in range(20_000):
        tail.feed(piece)
    assert (time.process_time() - start) / 20_000 < 5e-6  # about 0.15 us when alone
