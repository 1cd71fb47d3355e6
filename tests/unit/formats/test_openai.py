"""OpenAI's APIs, read. In: every field we use. Out: paths, content types, broken bodies."""

from __future__ import annotations

import json
import tracemalloc

import pytest

from epp.model import Medium
from tests.support.arrivals import FORMATS, parsed, post, sample_request

CHAT = "/v1/chat/completions"
HELLO = {"role": "user", "content": "hello"}


def chat_prompt(**fields: object) -> bytes:
    return parsed(CHAT, {"model": "m", "messages": [HELLO], **fields}).prompt


def test_a_completion_is_read_whole() -> None:
    request = parsed(
        "/v1/completions?x=1",
        {"model": "m", "prompt": "abcdefgh", "stream": True, "max_tokens": 9, "cache_salt": "s"},
        headers={"x-request-id": "r-1"},
    )
    assert request.id == "r-1"
    assert request.path == "/v1/completions"
    assert request.format == "completions"
    assert (request.model, request.target_model) == ("m", "m")
    assert request.prompt == b"\xff\xff\xffpabcdefgh"
    assert request.prompt_tokens == 3  # two of text, one for the start
    assert request.salt == "s"
    assert request.streaming
    assert request.max_output_tokens == 9
    assert request.unread == ""
    assert not request.multimodal
    assert request.arrived_at == 7.0
    assert json.loads(request.body)["prompt"] == "abcdefgh"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, b'{"model":"m","messages":[%s{}]}' % (b"{}," * 1_500_000)),
        (CHAT, b'{"model":"m","messages":[{"content":[%s1]}]}' % (b"1," * 3_000_000)),
        ("/v1/messages", b'{"model":"m","messages":[%s{}]}' % (b"{}," * 1_500_000)),
        ("/v1/responses", b'{"model":"m","input":[%s{}]}' % (b"{}," * 3_000_000)),
        ("/v1/embeddings", b'{"model":"m","messages":[%s{}]}' % (b"{}," * 1_500_000)),
        ("/v1/completions", b'{"model":"m","prompt":[%s""]}' % (b'"",' * 4_500_000)),
    ],
    ids=["chat", "parts", "anthropic", "responses", "embeddings", "prompts"],
)
def test_a_body_of_millions_of_empty_things_takes_no_memory_of_theirs(
    path: str, body: bytes
) -> None:
    tracemalloc.start()
    try:
        request = FORMATS.parse(post(path, body), 0.0)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (request.model, request.unread) == ("m", "too-large")
    assert peak < 3 * len(body)


@pytest.mark.parametrize(
    ("prompt", "key", "tokens"),
    [
        pytest.param([1, 256, 65536], "010000000001000000000100", 3, id="token ids"),
        pytest.param([[1, 2], [3]], "0100000002000000", 3, id="nested token ids"),
        pytest.param(["abcd", "efghijkl"], "ffffff7061626364", 5, id="strings"),
        pytest.param(["abcd"], "ffffff7061626364", 2, id="one string in a list"),
        pytest.param([4294967295], "ffffffff", 1, id="largest id"),
        pytest.param("", "ffffff70", 1, id="empty string"),
    ],
)
def test_prompts_of_completions(prompt: object, key: str, tokens: int) -> None:
    request = parsed("/v1/completions", {"model": "m", "prompt": prompt})
    assert request.prompt.hex() == key
    assert request.prompt_tokens == tokens
    assert request.unread == ""


@pytest.mark.parametrize(
    "prompt",
    [
        pytest.param([-1], id="negative id"),
        pytest.param([2**32], id="id over 32 bits"),
        pytest.param([1, "a"], id="ids and text"),
        pytest.param(["a", 1], id="text and ids"),
        pytest.param([1, [2]], id="ids and lists"),
        pytest.param({"a": 1}, id="object"),
        pytest.param([1.5], id="fraction"),
    ],
)
def test_a_prompt_of_no_known_shape_is_routed_unread(prompt: object) -> None:
    request = parsed("/v1/completions", {"model": "m", "stream": True, "prompt": prompt})
    assert request.unread == "bad-shape"
    assert request.format == "completions"
    assert request.model == "m"
    assert request.streaming
    assert request.prompt == b""


@pytest.mark.parametrize("prompt", [None, []], ids=["null", "empty list"])
def test_a_completion_without_prompt_is_routed_unread(prompt: object) -> None:
    assert parsed("/v1/completions", {"model": "m", "prompt": prompt}).unread == "no-prompt"


def test_a_chat_in_canonical_bytes() -> None:
    request = parsed(
        CHAT,
        {
            "model": "m",
            "tools": [{"a": 1}],
            "messages": [
                {"role": "system", "content": "be brief"},
                {"role": "user", "content": [{"type": "text", "text": "hi"}], "name": "bo"},
                {"role": "assistant", "content": None, "tool_calls": [{"id": "c1"}]},
                {"role": "tool", "tool_call_id": "c1", "content": "4"},
            ],
        },
    )
    assert request.prompt == (
        b'\xff\xff\xffc\xffHt[{"a": 1}]'
        b'\xffM"system"\xffTbe brief'
        b'\xffM"user"\xffN"bo"\xffThi'
        b'\xffM"assistant"\xffC[{"id": "c1"}]'
        b'\xffM"tool"\xffT4\xffD"c1"'
    )
    assert request.prompt_tokens == -(-len(request.prompt) // 4)
    assert request.format == "chat"


def test_text_and_a_list_of_one_text_are_the_same_prompt() -> None:
    listed = {"role": "user", "content": [{"type": "text", "text": "hello"}]}
    assert chat_prompt(messages=[listed]) == chat_prompt()
    assert chat_prompt(messages=[{"role": "user", "content": ["hello"]}]) == chat_prompt()


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"temperature": 0.5}, id="temperature"),
        pytest.param({"stream": True, "user": "u"}, id="stream and user"),
        pytest.param({"tools": None}, id="null tools"),
        pytest.param({"tool_choice": "auto"}, id="tool choice"),
    ],
)
def test_what_the_engine_does_not_render_is_not_in_the_prompt(fields: dict[str, object]) -> None:
    assert chat_prompt(**fields) == chat_prompt()


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"tools": [{"type": "function"}]}, id="tools"),
        pytest.param({"functions": [{"name": "f"}]}, id="functions"),
        pytest.param({"documents": [{"title": "t"}]}, id="documents"),
        pytest.param({"chat_template": "{{ x }}"}, id="template"),
        pytest.param({"chat_template_kwargs": {"enable_thinking": False}}, id="template arguments"),
        pytest.param({"reasoning_effort": "high"}, id="reasoning effort"),
    ],
)
def test_what_is_rendered_first_differs_first(fields: dict[str, object]) -> None:
    plain, other = chat_prompt(), chat_prompt(**fields)
    assert plain[:4] == other[:4]
    assert plain[4:6] != other[4:6]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"role": "system"}, id="role"),
        pytest.param({"name": "bo"}, id="name"),
        pytest.param({"content": "hellO"}, id="text"),
        pytest.param({"reasoning_content": "hm"}, id="reasoning"),
        pytest.param({"reasoning": "hm"}, id="reasoning, the newer name"),
        pytest.param({"tool_calls": [{"id": "c"}]}, id="tool calls"),
        pytest.param({"function_call": {"name": "f"}}, id="function call"),
        pytest.param({"tool_call_id": "c"}, id="tool call answered"),
        pytest.param({"audio": {"id": "a"}}, id="earlier audio"),
        pytest.param({"content": [{"type": "refusal", "refusal": "no"}]}, id="refusal"),
        pytest.param({"content": [{"type": "thinking", "thinking": "no"}]}, id="thinking"),
        pytest.param({"content": [{"type": "novel", "text": "hello"}]}, id="unknown part"),
    ],
)
def test_messages_that_differ_are_different_prompts(change: dict[str, object]) -> None:
    assert chat_prompt(messages=[{**HELLO, **change}]) != chat_prompt()


@pytest.mark.parametrize(
    ("part", "tokens"),
    [
        pytest.param({"type": "image_url", "image_url": {"url": "{}"}}, 225, id="image"),
        pytest.param({"type": "image_url", "image_url": "{}"}, 225, id="image, bare url"),
        pytest.param({"type": "video_url", "video_url": {"url": "{}"}}, 4_500, id="video"),
        pytest.param({"type": "audio_url", "audio_url": {"url": "{}"}}, 250, id="audio"),
    ],
)
def test_media_differ_by_what_they_show_and_take_their_tokens(
    part: dict[str, object], tokens: int
) -> None:
    def request(url: str) -> bytes:
        shown = json.loads(json.dumps(part).replace("{}", url))
        asked = parsed(CHAT, {"messages": [{"role": "user", "content": [shown]}]})
        assert asked.multimodal
        return asked.prompt

    bare = parsed(CHAT, {"messages": [{"role": "user", "content": []}]}).prompt
    first, same, other = request("http://a/1"), request("http://a/1"), request("http://a/2")
    assert first == same
    assert len(first) == len(bare) + 2 + 4 * tokens
    assert first[: len(bare) + 2] == other[: len(bare) + 2]
    assert first[len(bare) + 2 :][:32] != other[len(bare) + 2 :][:32]


def test_a_video_takes_the_same_tokens_whatever_headers_say_of_it() -> None:
    part = {"type": "video_url", "video_url": {"url": "http://a/1"}}
    body = {"messages": [{"role": "user", "content": [part]}]}
    hints = {
        "x-llm-d-video-fps": "30",
        "x-llm-d-video-duration-seconds": "600",
        "x-llm-d-video-resolution": "1920x1080",
    }
    assert parsed(CHAT, body, headers=hints).prompt == parsed(CHAT, body).prompt


def test_each_image_and_sound_is_known_by_what_it_shows() -> None:
    def media(*urls: str) -> tuple[Medium, ...]:
        parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
        question = {"type": "text", "text": f"{len(urls)} images"}
        body = {"messages": [{"role": "user", "content": [question, *parts]}]}
        return parsed(CHAT, body).media

    one, two, three, again = media("http://a/1", "http://a/2", "http://a/3", "http://a/1")
    assert one == again
    assert len({one, two, three}) == 3
    assert media("http://a/2", "http://a/1") == (two, one)
    assert media() == ()


def test_each_medium_has_its_modality() -> None:
    kinds = ("image_url", "input_audio", "audio_url", "video_url", "file")
    parts = [{"type": kind, kind: {"data": kind}} for kind in kinds]
    body = {"messages": [{"role": "user", "content": parts}]}
    told = [medium.modality for medium in parsed(CHAT, body).media]
    assert told == ["image", "audio", "audio", "video", "document"]


def test_inline_audio_counts_by_its_size() -> None:
    sound = {"type": "input_audio", "input_audio": {"data": "A" * 17_000, "format": "wav"}}
    request = parsed(CHAT, {"messages": [{"role": "user", "content": [sound]}]})
    assert 10 <= request.prompt_tokens <= 20
    assert request.multimodal


def test_the_next_turn_begins_with_this_one() -> None:
    turns = [HELLO, {"role": "assistant", "content": "hi"}, {"role": "user", "content": "more"}]
    earlier, later = chat_prompt(messages=turns[:1]), chat_prompt(messages=turns)
    assert later.startswith(earlier)


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        pytest.param({"max_tokens": 5}, 5, id="old name"),
        pytest.param({"max_completion_tokens": 6, "max_tokens": 5}, 6, id="new name first"),
        pytest.param({"max_tokens": None}, None, id="null"),
        pytest.param({"max_tokens": "many"}, None, id="text"),
        pytest.param({"max_tokens": True}, None, id="flag"),
        pytest.param({"max_tokens": -1}, None, id="negative"),
    ],
)
def test_output_limits(fields: dict[str, object], limit: int | None) -> None:
    assert parsed(CHAT, {"messages": [HELLO], **fields}).max_output_tokens == limit


@pytest.mark.parametrize(
    ("stream", "streaming"),
    [(True, True), (False, False), (None, False), (1, True), ("true", True), ("no", False)],
    ids=str,
)
def test_streaming_as_engines_read_it(stream: object, streaming: bool) -> None:
    assert parsed(CHAT, {"messages": [HELLO], "stream": stream}).streaming is streaming


def test_an_empty_salt_is_none() -> None:
    assert parsed(CHAT, {"messages": [HELLO], "cache_salt": ""}).salt == ""


def test_responses_of_text_or_of_messages_are_the_same_prompt() -> None:
    short = parsed("/v1/responses", {"model": "m", "input": "hello", "max_output_tokens": 4})
    long = parsed("/v1/responses", {"input": [{"role": "user", "content": "hello"}]})
    assert short.format == "responses"
    assert short.prompt == long.prompt == b'\xff\xff\xffr\xffM"user"\xffThello'
    assert short.max_output_tokens == 4


def test_responses_put_instructions_and_tools_first() -> None:
    body = {"input": "hello", "instructions": "be brief", "tools": [{"type": "x"}]}
    assert parsed("/v1/responses", body).prompt == (
        b'\xff\xff\xffr\xffHi"be brief"\xffHt[{"type": "x"}]\xffM"user"\xffThello'
    )


def test_calls_among_responses_items_are_taken_as_written() -> None:
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    said = {"type": "message", "role": "assistant", "content": [
        {"type": "output_text", "text": "ok"}, {"type": "input_image", "image_url": "http://a"},
    ]}  # fmt: skip
    request = parsed("/v1/responses", {"input": [call, said]})
    assert json.dumps(call).encode() in request.prompt
    assert b'\xffM"assistant"\xffTok\xffI' in request.prompt
    assert request.multimodal


def test_conversations_read_their_items() -> None:
    request = parsed("/v1/conversations", {"items": [{"role": "user", "content": "hello"}]})
    assert request.format == "conversations"
    assert request.prompt == b'\xff\xff\xffr\xffM"user"\xffThello'


def test_embeddings_of_a_conversation_are_read_like_a_chat() -> None:
    request = parsed("/v1/embeddings", {"model": "m", "messages": [HELLO]})
    assert request.format == "embeddings"
    assert request.prompt == chat_prompt()


def test_rendering_is_read_like_the_request_but_is_another_format() -> None:
    request = parsed(CHAT + "/render", {"model": "m", "messages": [HELLO]})
    assert request.format == "chat-render"
    assert request.prompt == chat_prompt()
    assert parsed("/v1/completions/render", {"prompt": "a"}).format == "completions-render"


def test_images_are_generated_from_a_prompt() -> None:
    assert parsed("/v1/images/generations", {"prompt": "a cat"}).format == "images"


@pytest.mark.parametrize("body", [{}, {"messages": []}, {"messages": None}], ids=str)
def test_a_chat_without_messages_is_routed_unread(body: object) -> None:
    assert parsed(CHAT, body).unread == "no-prompt"


@pytest.mark.parametrize(
    "messages",
    [
        pytest.param("hi", id="text"),
        pytest.param(["hi"], id="texts"),
        pytest.param([{"content": 5}], id="number as content"),
        pytest.param([{"content": [5]}], id="number as part"),
        pytest.param([{"content": [{"type": 5}]}], id="number as type"),
    ],
)
def test_a_chat_of_the_wrong_shape_is_routed_unread(messages: object) -> None:
    request = parsed(CHAT, {"model": "m", "messages": messages})
    assert (request.unread, request.model) == ("bad-shape", "m")


def test_real_token_ids_are_counted_exactly() -> None:
    arrival = sample_request("lora_b_salt")
    request = FORMATS.parse(arrival, 0.0)
    assert request.prompt_tokens == len(json.loads(arrival.body)["prompt"])
    assert len(request.prompt) == 4 * request.prompt_tokens
    assert (request.model, request.salt) == ("lora-b", "s1")
    assert request.max_output_tokens == 4


@pytest.mark.parametrize(
    ("name", "format", "reported"),
    [("chat", "chat", 277), ("completion_stream", "completions", 265)],
    ids=["chat", "completion"],
)
def test_estimates_of_real_requests_are_in_range(name: str, format: str, reported: int) -> None:
    request = FORMATS.parse(sample_request(name), 0.0)
    assert request.format == format
    assert request.model == "tiny"
    # The recorded model has a tiny vocabulary, so it takes more tokens than any real one.
    assert reported / 2 < request.prompt_tokens <= reported
