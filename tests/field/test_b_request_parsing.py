"""Field problems (b), request parsing: each was a failure of some picker in production.

Here: what the formats make of each body. The same through a real Envoy is in tests/e2e.
"""

from __future__ import annotations

import json
import random

import pytest

from epp.errors import BadRequest
from epp.formats.sse import DONE, Splitter
from epp.formats.usage import Tail
from epp.model import Usage
from epp.prefix.blocks import block_hashes, root
from tests.support.arrivals import parsed, sample_answer

TEXT = "The quick brown fox jumps over the lazy dog. " * 20
MESSAGES = [{"role": "user", "content": TEXT}]
SPLITS = (1, 2, 3, 7, 100, 10_000)


def blocks(path: str, body: object) -> tuple[int, ...]:
    request = parsed(path, body)
    return block_hashes(request.prompt, root=root(request.target_model, request.salt))


def test_b036_completions_and_chat_are_both_understood() -> None:
    """Field problem B036: 'prompt not found' on chat.

    kubernetes-sigs/gateway-api-inference-extension#790.
    """
    completion = parsed("/v1/completions", {"model": "m", "prompt": TEXT})
    chat = parsed("/v1/chat/completions", {"model": "m", "messages": MESSAGES})
    assert completion.unread == chat.unread == ""
    assert completion.model == chat.model == "m"
    assert abs(completion.prompt_tokens - chat.prompt_tokens) < 10


@pytest.mark.parametrize(
    ("inputs", "tokens"),
    [
        pytest.param("abcdefgh", 3, id="string"),
        pytest.param(["abcd", "efgh"], 4, id="list of strings"),
        pytest.param([1, 2, 3], 3, id="token ids"),
        pytest.param([[1, 2], [3, 4]], 4, id="lists of token ids"),
    ],
)
def test_b037_embeddings_take_every_kind_of_input(inputs: object, tokens: int) -> None:
    """Field problem B037: /v1/embeddings refused as an invalid chat.

    kubernetes-sigs/gateway-api-inference-extension#2418.
    """
    request = parsed("/v1/embeddings", {"model": "m", "input": inputs})
    assert (request.format, request.model, request.unread) == ("embeddings", "m", "")
    assert request.prompt_tokens == tokens


@pytest.mark.parametrize("path", ["/v1/rerank", "/v1/score"])
def test_b038_rerank_and_score_are_routed(path: str) -> None:
    """Field problem B038: no parser for query and documents.

    kubernetes-sigs/gateway-api-inference-extension#2109.
    """
    request = parsed(path, {"model": "m", "query": "q", "documents": ["a", "b"]})
    assert (request.model, request.unread) == ("m", "")


def test_b039_an_audio_upload_is_routed_byte_for_byte_with_its_model() -> None:
    """Field problem B039: multipart bodies were decoded as JSON.

    kubernetes-sigs/gateway-api-inference-extension#2203.
    """
    sound = random.Random(39).randbytes(8_000_000)
    body = (
        b'--b0\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
        + sound
        + b'\r\n--b0\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper\r\n--b0--\r\n'
    )
    kind = "multipart/form-data; boundary=b0"
    request = parsed("/v1/audio/transcriptions", body, content_type=kind)
    assert request.model == "whisper"
    assert request.body == body
    assert request.headers["content-type"] == kind


def test_b043_the_done_mark_is_no_json_however_it_is_cut() -> None:
    """Field problem B043: '[DONE]' was decoded as JSON. volcano-sh/kthena#199."""
    for ends in (b"\n", b"\r\n"):
        stream = sample_answer("chat_stream").replace(b"\n", ends)
        assert stream.endswith(b"data: [DONE]" + ends * 2)
        for size in SPLITS:
            pieces = [stream[i : i + size] for i in range(0, len(stream), size)]
            splitter, tail = Splitter(), Tail()
            events = [event for piece in pieces for event in splitter.feed(piece)]
            for piece in pieces:
                tail.feed(piece)
            assert events[-1] == DONE
            assert json.loads(events[-2])["usage"]["prompt_tokens"] == 277
            assert tail.usage() == Usage(277, 4, 256)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "a"}),
        ("/v1/chat/completions", {"messages": MESSAGES}),
        ("/v1/responses", {"input": "a"}),
        ("/v1/messages", {"messages": MESSAGES}),
        ("/inference/v1/generate", {"token_ids": [1]}),
    ],
)
def test_b044_streaming_is_read_on_every_path(path: str, body: dict[str, object]) -> None:
    """Field problem B044: stream=true was read on the chat path only. vllm-project/aibrix#1816."""
    assert parsed(path, {**body, "stream": True}).streaming
    assert not parsed(path, body).streaming


def test_b045_a_list_of_prompts_is_known_by_its_first() -> None:
    """Field problem B045: lists of strings broke prefix scoring. llm-d/llm-d-router PR 860."""
    both = blocks("/v1/completions", {"prompt": [TEXT, "other"]})
    assert both == blocks("/v1/completions", {"prompt": [TEXT, "another"]})
    assert both == blocks("/v1/completions", {"prompt": [TEXT]})
    assert both == blocks("/v1/completions", {"prompt": TEXT})
    assert len(both) == 3


@pytest.mark.parametrize(
    ("kind", "decoded"),
    [
        (None, True),
        ("application/json; charset=utf-8", True),
        ("APPLICATION/JSON", True),
        ("multipart/form-data; boundary=x", False),
        ("text/plain", False),
        ("application/x-www-form-urlencoded", False),
    ],
)
def test_b048_only_json_is_decoded_and_all_is_passed_on(kind: str | None, decoded: bool) -> None:
    """Field problem B048: uploads decoded as JSON to look for 'stream'.

    BerriAI/litellm PR 23338, 29929.
    """
    body = json.dumps({"model": "m", "messages": MESSAGES}).encode()
    request = parsed("/v1/chat/completions", body, content_type=kind)
    assert bool(request.model) is decoded
    assert request.body == body


def test_b049_other_tools_are_another_prefix_from_the_first_block() -> None:
    """Field problem B049: tools were not hashed, so hits were overstated.

    kubernetes-sigs/gateway-api-inference-extension#2218. Tools count as the client wrote them:
    the same tools with other spacing are another prefix, which can only understate a hit.
    """

    def keys(tools: str) -> tuple[int, ...]:
        body = f'{{"messages": {json.dumps(MESSAGES)}, "tools": {tools}}}'.encode()
        return blocks("/v1/chat/completions", body)

    one, other = keys('[{"name": "add"}]'), keys('[{"name": "sub"}]')
    assert len(one) == len(other) == 3
    assert not set(one) & set(other)
    assert one == keys('[{"name": "add"}]')
    assert one != keys('[{"name":"add"}]')


def test_b051_token_ids_have_a_prefix_like_text() -> None:
    """Field problem B051: token-id prompts gave 500. vllm-project/production-stack PR 1037."""
    assert parsed("/v1/completions", {"prompt": [1, 2, 3, 4]}).prompt_tokens == 4
    ids = list(range(1_000, 1_200))
    assert len(blocks("/v1/completions", {"prompt": ids})) == 3
    assert blocks("/v1/completions", {"prompt": ids}) == blocks("/v1/completions", {"prompt": ids})
    longer = blocks("/v1/completions", {"prompt": [*ids, *ids]})
    assert longer[:3] == blocks("/v1/completions", {"prompt": ids})


@pytest.mark.parametrize(
    "fields",
    [{}, {"model": None}, {"model": 5}, {"model": ""}, {"model": ["m"]}, {"model": {"a": 1}}],
    ids=str,
)
def test_b053_a_request_without_a_usable_model_is_routed(fields: dict[str, object]) -> None:
    """Field problem B053: POST without 'model' was refused by the picker.

    kubernetes-sigs/gateway-api-inference-extension#425. The server may have a default.
    """
    for path, body in (
        ("/v1/completions", {"prompt": "a"}),
        ("/v1/chat/completions", {"messages": MESSAGES}),
        ("/v1/embeddings", {"input": "a"}),
        ("/v1/messages", {"messages": MESSAGES}),
    ):
        request = parsed(path, {**body, **fields})
        assert (request.model, request.target_model) == ("", "")


def test_b053_an_unknown_model_is_passed_on() -> None:
    assert parsed("/v1/completions", {"prompt": "a", "model": "nobody"}).model == "nobody"


def test_b202_no_part_of_a_prompt_is_in_an_error() -> None:
    """Field problem B202: prompts and parse errors in the log.

    kubernetes-sigs/gateway-api-inference-extension#1162.
    """
    marker = "marker-4711"
    good = json.dumps({"model": marker, "messages": [{"role": "user", "content": marker}]})
    refused = 0
    for cut in range(1, len(good)):
        for body in (good[:cut], good[:cut] + "\\", good[:cut] + marker + good[cut:]):
            try:
                request = parsed("/v1/chat/completions", body.encode())
            except BadRequest as error:
                refused += 1
                said = f"{error} {error!r} {error.__cause__}"
                assert "marker" not in said
                assert error.__suppress_context__
            else:
                assert marker not in request.unread
    assert refused > 150
