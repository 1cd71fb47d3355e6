"""Anthropic's messages, read."""

from __future__ import annotations

import pytest

from tests.support.arrivals import FORMATS, parsed, sample_request

PATH = "/v1/messages"
HELLO = {"role": "user", "content": "hello"}


def prompt(**fields: object) -> bytes:
    return parsed(PATH, {"model": "m", "messages": [HELLO], **fields}).prompt


def test_a_message_request_in_canonical_bytes() -> None:
    request = parsed(
        PATH,
        {
            "model": "m",
            "max_tokens": 8,
            "stream": True,
            "system": [{"type": "text", "text": "be brief"}],
            "tools": [{"name": "f"}],
            "messages": [
                HELLO,
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "hm", "signature": "x"},
                        {"type": "text", "text": "ok"},
                        {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}},
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "tool_result",
                            "tool_use_id": "t1",
                            "content": [{"type": "text", "text": "4"}],
                            "cache_control": {"type": "ephemeral"},
                        }
                    ],
                },
            ],
        },
    )
    assert request.format == "messages"
    assert request.streaming
    assert request.max_output_tokens == 8
    assert request.prompt == (
        b'\xff\xff\xffm\xffHt[{"name": "f"}]\xffTbe brief'
        b'\xffM"user"\xffThello'
        b'\xffM"assistant"\xffRhm\xffTok\xffD"t1"\xffC"f"\xffC{"a": 1}'
        b'\xffM"user"\xffD"t1"\xffT4'
    )


def test_a_cache_mark_that_moves_on_does_not_change_the_prompt() -> None:
    text = {"type": "text", "text": "hello"}
    marked = {**text, "cache_control": {"type": "ephemeral"}}
    assert prompt(messages=[{"role": "user", "content": [marked]}]) == prompt()
    assert prompt(system=[marked]) == prompt(system=[text]) == prompt(system="hello")


def test_the_billing_block_that_engines_drop_is_not_in_the_prompt() -> None:
    billing = {"type": "text", "text": "x-anthropic-billing-header: cc_version=1; cch=eb6c6;"}
    rest = {"type": "text", "text": "You are helpful."}
    assert prompt(system=[billing, rest]) == prompt(system=[rest])


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"tools": [{"name": "f"}]}, id="tools"),
        pytest.param({"thinking": {"type": "enabled"}}, id="thinking"),
        pytest.param({"system": "be brief"}, id="system"),
    ],
)
def test_what_is_rendered_first_differs_first(fields: dict[str, object]) -> None:
    assert prompt()[4:6] != prompt(**fields)[4:6]


def test_images_differ_by_their_data_also_inside_tool_results() -> None:
    def shown(data: str, *, inside: bool) -> bytes:
        source = {"type": "base64", "media_type": "image/png", "data": data}
        image = {"type": "image", "source": source}
        result = {"type": "tool_result", "tool_use_id": "t", "content": [image]}
        content = [result if inside else image]
        request = parsed(PATH, {"messages": [{"role": "user", "content": content}]})
        assert request.multimodal
        return request.prompt

    assert shown("AAAA", inside=False) != shown("AAAB", inside=False)
    assert shown("AAAA", inside=True) != shown("AAAB", inside=True)
    assert shown("AAAA", inside=True) == shown("AAAA", inside=True)


def test_an_image_stays_the_same_while_its_cache_control_moves() -> None:
    source = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
    image = {"type": "image", "source": source}
    marked = {**image, "cache_control": {"type": "ephemeral"}}
    first, later = (
        parsed(PATH, {"messages": [{"role": "user", "content": [part]}]})
        for part in (marked, image)
    )
    assert first.media == later.media
    assert first.prompt == later.prompt
    assert len(first.media) == 1


def test_a_result_inside_a_result_is_taken_as_written() -> None:
    inner = {"type": "tool_result", "tool_use_id": "i", "content": "deep"}
    outer = {"type": "tool_result", "tool_use_id": "o", "content": [inner]}
    assert b'"tool_use_id": "i"' in prompt(messages=[{"role": "user", "content": [outer]}])


def test_a_tool_result_may_be_empty() -> None:
    empty = {"type": "tool_result", "tool_use_id": "o"}
    assert prompt(messages=[{"role": "user", "content": [empty]}]).endswith(b'\xffD"o"')


def test_counting_tokens_is_read_alike_but_is_another_format() -> None:
    request = parsed(PATH + "/count_tokens", {"model": "m", "messages": [HELLO]})
    assert request.format == "count-tokens"
    assert request.prompt == prompt()


def test_no_messages_are_routed_unread() -> None:
    assert parsed(PATH, {"model": "m"}).unread == "no-prompt"


def test_a_real_request_is_read() -> None:
    request = FORMATS.parse(sample_request("messages_api"), 0.0)
    assert (request.model, request.max_output_tokens, request.unread) == ("tiny", 4, "")
