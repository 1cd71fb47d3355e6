"""Bodies of all APIs, read into token ids and limits."""

from __future__ import annotations

from typing import Any

import pytest

from epp.sim import tokenizer
from epp.sim.asked import IMAGE_TOKENS, Asked, Refused, chat, read, read_json, responses


def ids(*parts: str) -> list[int]:
    return [int(each) for each in tokenizer.encode_parts([part.encode() for part in parts])]


def prompts(api: str, **body: Any) -> list[list[int]]:
    return [prompt.tolist() for prompt in read(api, body).prompts]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param("hi there", [ids("hi there")], id="a string"),
        pytest.param(["hi", "ho"], [ids("hi"), ids("ho")], id="strings"),
        pytest.param([1, 2, 3], [[1, 2, 3]], id="token ids"),
        pytest.param([[1, 2], [3]], [[1, 2], [3]], id="nested token ids"),
    ],
)
def test_prompts_of_a_completion(given: Any, expected: list[list[int]]) -> None:
    assert prompts("completions", prompt=given) == expected


@pytest.mark.parametrize(
    "given", ["", [], [[]], ["a", 1], [1, "a"], [[1], ["a"]], [{}], 7, {"a": 1}], ids=repr
)
def test_what_is_no_prompt_is_refused_by_name(given: Any) -> None:
    with pytest.raises(Refused, match="prompt") as refused:
        read("completions", {"prompt": given})
    assert refused.value.status == 400


def test_a_chat_is_rendered_turn_by_turn() -> None:
    messages = [{"role": "system", "content": "be kind"}, {"role": "user", "content": None}]
    expected = ids("<|system|>", "be kind", "<|end|>", "<|user|>", "<|end|>", "<|assistant|>")
    assert chat({"messages": messages}).tolist() == expected


def test_a_longer_conversation_starts_with_the_shorter_one() -> None:
    turns = [{"role": "user", "content": "what?"}, {"role": "assistant", "content": " yes"}]
    short = chat({"messages": turns[:1]}).tolist()
    assert chat({"messages": turns}).tolist()[: len(short)] == short


def test_tools_calls_and_parts_are_in_the_prompt() -> None:
    def tokens(**more: Any) -> list[int]:
        message = {"role": "user", "content": [{"type": "text", "text": "hi"}]}
        call = more.pop("tool_calls", None)
        if call:
            message["tool_calls"] = call
        return [int(each) for each in chat({"messages": [message], **more})]

    plain = tokens()
    assert plain == chat({"messages": [{"role": "user", "content": "hi"}]}).tolist()
    assert tokens(tools=[{"name": "a"}]) != tokens(tools=[{"name": "b"}]) != plain
    assert tokens(tool_calls=[{"id": "1"}]) != plain
    assert tokens(system="be kind") == [*ids("<|system|>", "be kind", "<|end|>"), *plain]


def test_pictures_count_and_differ() -> None:
    def tokens(url: str) -> list[int]:
        part = {"type": "image_url", "image_url": {"url": url}}
        message = {"role": "user", "content": [part, "hi"]}
        return [int(each) for each in chat({"messages": [message]})]

    empty = chat({"messages": [{"role": "user", "content": ["hi"]}]}).tolist()
    assert len(tokens("data:a")) == len(empty) + IMAGE_TOKENS
    assert tokens("data:a") == tokens("data:a") != tokens("data:b")


def test_a_responses_input_is_a_string_or_messages() -> None:
    messages = [{"role": "user", "content": "hi"}]
    assert responses({"input": "hi"}).tolist() == responses({"input": messages}).tolist()
    assert responses({"input": ["hi"]}).tolist() == responses({"input": messages}).tolist()
    assert len(responses({"input": "hi", "instructions": "be kind"})) > len(
        responses({"input": "hi"})
    )


CHAT = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize(
    ("api", "body", "limit"),
    [
        ("completions", {"prompt": "hi"}, 16),
        ("completions", {"prompt": "hi", "max_tokens": 3}, 3),
        ("chat", CHAT, None),
        ("chat", {**CHAT, "max_tokens": 3}, 3),
        ("chat", {**CHAT, "max_tokens": 3, "max_completion_tokens": 4}, 4),
        ("messages", {**CHAT, "max_tokens": 5}, 5),
        ("responses", {"input": "hi", "max_output_tokens": 6}, 6),
        ("generate", {"token_ids": [1], "sampling_params": {"max_tokens": 7}}, 7),
        ("generate", {"token_ids": [1], "sampling_params": "odd"}, None),
        ("embeddings", {"input": "hi"}, 0),
        ("embeddings", CHAT, 0),
    ],
)
def test_the_limit_of_an_answer(api: str, body: dict[str, Any], limit: int | None) -> None:
    assert read(api, body).max_tokens == limit


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"max_tokens": "abc"}, "body.max_tokens"),
        ({"max_tokens": 1.5}, "body.max_tokens"),
        ({"max_tokens": True}, "body.max_tokens"),
        ({"max_tokens": []}, "body.max_tokens"),
        ({"max_tokens": 0}, "max_tokens must be at least 1, got 0"),
        ({"n": -1}, "n must be within 1..128, got -1"),
        ({"n": 129}, "n must be within 1..128, got 129"),
    ],
    ids=str,
)
def test_limits_that_are_none_are_refused_by_name(more: dict[str, Any], message: str) -> None:
    with pytest.raises(Refused, match=message):
        read("chat", {**CHAT, **more})


@pytest.mark.parametrize(
    ("api", "body", "field"),
    [
        ("completions", {}, "prompt"),
        ("chat", {}, "messages"),
        ("chat", {"messages": "hi"}, "messages"),
        ("chat", {"messages": ["hi"]}, "messages"),
        ("responses", {}, "input"),
        ("embeddings", {}, "input"),
        ("generate", {}, "token_ids"),
    ],
)
def test_what_is_missing_is_named(api: str, body: dict[str, Any], field: str) -> None:
    with pytest.raises(Refused) as refused:
        read(api, body)
    assert refused.value.param is not None
    assert refused.value.param.endswith(field)


@pytest.mark.parametrize(
    "body", [b"[1]", b'"a"', b"{", b"\xff", b"[" * 100_000], ids=lambda b: repr(b[:8])
)
def test_what_is_no_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(Refused) as refused:
        read_json("application/json", body)
    assert refused.value.status == 400


def test_options_of_streams() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    asked = read("chat", {**CHAT, "stream": True, "stream_options": options, "cache_salt": "x"})
    assert (asked.stream, asked.include_usage, asked.continuous_usage) == (True, True, True)
    assert asked.salt == "x"
    odd: Asked = read("chat", {**CHAT, "stream_options": 1, "cache_salt": 2})
    assert (odd.include_usage, odd.salt) == (False, "")


def test_embeddings_are_never_streamed() -> None:
    assert not read("embeddings", {"input": "hi", "stream": True}).stream
