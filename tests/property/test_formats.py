"""Any JSON on any path is routed; conversations begin alike exactly as far as they are alike."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from epp.errors import BadRequest
from epp.formats import FormatSet
from epp.formats.anthropic import AnthropicParser
from epp.formats.generate import SglangHttpParser, VllmHttpParser
from epp.formats.openai import OpenAIParser
from tests.support.arrivals import post

ALL = FormatSet([OpenAIParser(), AnthropicParser(), VllmHttpParser(), SglangHttpParser()])
PATHS = st.sampled_from(
    [
        "/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/conversations",
        "/v1/embeddings", "/v1/messages", "/inference/v1/generate", "/generate", "/v1/rerank",
        "/v1/score", "/v1/images/generations", "/v1/unknown",
    ]
)  # fmt: skip
KEYS = st.sampled_from(
    [
        "model", "stream", "prompt", "messages", "tools", "input", "items", "system", "role", "type",
        "content", "text", "name", "image_url", "token_ids", "input_ids", "features", "mm_hashes",
        "mm_placeholders", "image", "offset", "length", "query", "documents", "cache_salt",
        "sampling_params", "max_tokens", "extra_key", "lora_path", "tool_use_id", "input_audio",
    ]
)  # fmt: skip
WORDS = st.sampled_from(
    ["", "user", "text", "image", "image_url", "tool_use", "tool_result", "thinking", "message"]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | WORDS | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=15,
)  # fmt: skip
SAID = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
TURNS = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant"]), "content": SAID},
    optional={"name": SAID, "tool_calls": st.just([{"id": "c"}])},
)


@given(PATHS, st.dictionaries(KEYS, JSON, max_size=6) | JSON)
def test_any_json_is_routed(path: str, body: object) -> None:
    raw = json.dumps(body).encode()
    request = ALL.parse(post(path, raw), 0.0)
    assert request.body == raw
    assert request.prompt_tokens >= 0
    assert " " not in request.unread


@given(PATHS, st.binary(max_size=100))
def test_any_bytes_are_routed_or_refused(path: str, body: bytes) -> None:
    try:
        assert ALL.parse(post(path, body), 0.0).body == body
    except BadRequest as error:
        assert str(error).startswith("the body is not valid JSON: error at ")


@given(st.lists(TURNS, min_size=1, max_size=5), st.lists(TURNS, min_size=1, max_size=5))
def test_prompts_are_equal_only_if_conversations_are(
    one: list[dict[str, object]], other: list[dict[str, object]]
) -> None:
    for path in ("/v1/chat/completions", "/v1/messages"):
        first = ALL.parse(post(path, {"messages": one}), 0.0).prompt
        second = ALL.parse(post(path, {"messages": other}), 0.0).prompt
        longer = ALL.parse(post(path, {"messages": one + other}), 0.0).prompt
        assert (first == second) is (one == other)
        assert longer.startswith(first)
