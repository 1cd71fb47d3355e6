"""Token usage reaches the picker's metrics: from answers it sees, and from Envoy's filters."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support import http1
from tests.support.backend import body, wanted
from tests.support.stack import Stack

pytestmark = pytest.mark.e2e

CHAT = "/v1/chat/completions"
USAGE = (
    '"usage":{"prompt_tokens":900,"completion_tokens":7,"total_tokens":907,'
    '"prompt_tokens_details":{"cached_tokens":640}}'
)
WHOLE = '{"object":"chat.completion","choices":[],' + USAGE + "}"
CHUNK = 'data: {"object":"chat.completion.chunk","choices":[{"delta":{"content":"ü"}}]}\n\n'
STREAM = CHUNK * 7 + 'data: {"choices":[],' + USAGE + "}\n\ndata: [DONE]\n\n"

RESPONSES = {
    "input_tokens": 900,
    "input_tokens_details": {"cached_tokens": 640},
    "output_tokens": 7,
}
ANTHROPIC = {"input_tokens": 900, "cache_read_input_tokens": 640, "output_tokens": 7}
SGLANG = {"prompt_tokens": 900, "completion_tokens": 7, "cached_tokens": 640}
WHOLES = {
    "responses": {"output": [], "usage": RESPONSES},
    "anthropic": {"content": [], "usage": ANTHROPIC},
    "sglang": {"text": "a", "meta_info": SGLANG},
}
LONG = "word " * 4_000  #: longer than Envoy lets an event be, if it is not told
STREAMED: dict[str, list[dict[str, Any]]] = {
    "responses": [
        {"type": "response.created", "response": {"usage": None}},
        {"type": "response.completed", "response": {"output": [LONG], "usage": RESPONSES}},
    ],
    "anthropic": [
        {"type": "message_start", "message": {"usage": {**ANTHROPIC, "output_tokens": 1}}},
        {"type": "message_delta", "usage": {"output_tokens": 7}},
        {"type": "message_stop"},
    ],
    "sglang": [
        {"text": "a", "meta_info": {**SGLANG, "completion_tokens": 1}},
        {"text": "ab", "meta_info": SGLANG},
    ],
}

READERS: dict[str, dict[str, Any]] = {
    "stock": {"mode": "stock"},
    "lean": {"mode": "lean", "gateway": {"lean_usage": True, "lean_ttft": True}},
}


@pytest.fixture(scope="module", params=sorted(READERS))
def reader(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    """A gateway that reads usage out of answers."""
    folder = tmp_path_factory.mktemp(f"usage-{request.param}")
    with Stack(folder, **READERS[request.param]) as stack:
        yield stack


def events(*data: dict[str, Any]) -> str:
    return "".join(f"event: {each.get('type')}\ndata: {json.dumps(each)}\n\n" for each in data)


def told(stack: Stack) -> dict[str, float]:
    """Tokens so far, over all models."""
    metrics = stack.metrics()
    return {
        kind: sum(
            value
            for name, value in metrics.items()
            if name.startswith(f"llm_d_epp_request_{kind}_tokens_sum")
        )
        for kind in ("input", "output", "cached")
    }


@pytest.mark.parametrize(
    ("text", "kind"),
    [(WHOLE, "application/json"), (STREAM, "text/event-stream; charset=utf-8")],
    ids=["whole", "streamed"],
)
def test_an_answers_usage_is_counted_and_the_answer_untouched(
    reader: Stack, text: str, kind: str
) -> None:
    headers = wanted(text=text, pieces=9, chunked=True, headers={"content-type": kind})
    assert counted(reader, headers, text) == (900, 7, 640)


@pytest.mark.parametrize(
    ("api", "kind"),
    [
        ("responses", "application/json; charset=utf-8"),
        ("anthropic", "Application/JSON"),
        ("sglang", "application/json"),
        ("responses", "text/event-stream"),
        ("anthropic", "text/event-stream; charset=utf-8"),
        ("sglang", "text/event-stream"),
    ],
)
def test_usage_is_read_from_the_answers_of_every_api(reader: Stack, api: str, kind: str) -> None:
    text = events(*STREAMED[api]) if "stream" in kind else json.dumps(WHOLES[api])
    assert counted(reader, wanted(text=text, headers={"content-type": kind}), text) == (900, 7, 640)


def test_what_is_no_count_is_not_taken_for_one(reader: Stack) -> None:
    usage = {"prompt_tokens": "900", "completion_tokens": True, "prompt_tokens_details": None}
    text = json.dumps({"usage": {**usage, "cached_tokens": 7.5}})
    for kind, said in (("application/json", text), ("text/event-stream", f"data: {text}\n\n")):
        headers = wanted(text=said, headers={"content-type": kind})
        assert counted(reader, headers, said) == (0, 0, 0)


def counted(stack: Stack, headers: dict[str, str], text: str) -> tuple[float, ...]:
    """Ask for an answer, which must be ``text``; return the tokens that were counted for it."""
    before = told(stack)
    request = b'{"model":"m","messages":[]}'
    answer = asyncio.run(http1.request(stack.port, "POST", CHAT, headers, request))
    assert answer.body.decode() == text
    stack.wait_idle()
    after = told(stack)
    return tuple(after[name] - before[name] for name in ("input", "output", "cached"))


@pytest.mark.parametrize("size", [0, 1, 65_537, 400_000])
def test_an_answer_that_is_no_json_is_untouched(reader: Stack, size: int) -> None:
    headers = wanted(
        kind="bytes", size=size, seed=1, pieces=5, chunked=size % 2 == 0,
        headers={"content-type": "text/event-stream"},
    )  # fmt: skip
    answer = asyncio.run(http1.request(reader.port, "POST", CHAT, headers, b"{}"))
    assert (answer.status, answer.body) == (200, body(size, 1))
    reader.wait_idle()
