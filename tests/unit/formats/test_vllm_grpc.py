"""vLLM's gRPC requests, read from bytes put together by hand."""

from __future__ import annotations

import time

import pytest

from epp.formats import FormatSet
from epp.formats.grpc.vllm import MAX_MEDIA_BYTES, MAX_TOKENIZED_BYTES, VllmGrpcParser
from epp.formats.prompt import MAX_LISTED_COMMAS
from epp.formats.splice import rewrite_model
from epp.model import InferenceRequest
from tests.support.arrivals import parsed, post

GENERATE = "/vllm.grpc.engine.VllmEngine/Generate"
EMBED = "/vllm.grpc.engine.VllmEngine/Embed"
FORMATS = FormatSet([VllmGrpcParser()])

TOKENIZED = b"\x12\x05\x12\x03\x0a\x0b\x0c"  #: field 2: a message, its field 2: packed 10, 11, 12
STREAM = b"\x28\x01"  #: field 5: true
LIMIT = b"\x22\x02\x40\x05"  #: field 4: a message, its field 8: 5
THREE = b"\x0a\0\0\0\x0b\0\0\0\x0c\0\0\0"  #: the canonical prompt of 10, 11, 12


def field(number: int, content: bytes) -> bytes:
    """A length-delimited field."""
    size, length = len(content), b""
    while size > 0x7F:
        length += bytes([size & 0x7F | 0x80])
        size >>= 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + content


def framed(message: bytes, compressed: int = 0) -> bytes:
    return bytes([compressed]) + len(message).to_bytes(4, "big") + message


def grpc(
    body: bytes, path: str = GENERATE, kind: str | None = "application/grpc"
) -> InferenceRequest:
    return FORMATS.parse(post(path, body, content_type=kind), 0.0)


def read(message: bytes, path: str = GENERATE) -> InferenceRequest:
    return grpc(framed(message), path)


def test_token_ids_are_the_prompt() -> None:
    request = read(TOKENIZED + LIMIT + STREAM)
    assert (request.format, request.unread, request.model) == ("vllm-grpc", "", "")
    assert (request.prompt, request.prompt_tokens) == (THREE, 3)
    assert (request.max_output_tokens, request.streaming) == (5, True)
    assert not request.multimodal


def test_token_ids_one_by_one_are_the_same_as_packed() -> None:
    assert read(field(2, b"\x10\x0a\x10\x0b\x10\x0c")).prompt == THREE


def test_text_is_the_same_prompt_as_of_a_completion() -> None:
    request = read(field(3, b"hello"))
    assert request.prompt == parsed("/v1/completions", {"prompt": "hello"}).prompt
    assert request.prompt_tokens == 3
    assert request.max_output_tokens is None


def test_an_embedding_has_token_ids() -> None:
    request = read(TOKENIZED, EMBED)
    assert (request.format, request.prompt, request.prompt_tokens) == ("vllm-grpc-embed", THREE, 3)


def test_unknown_fields_are_skipped() -> None:
    unknown = field(15, b"whatever") + b"\x48\x07"  # and field 9: a number
    assert read(unknown + TOKENIZED + unknown).prompt == THREE


def test_the_body_goes_on_as_it_came_and_no_model_is_written_into_it() -> None:
    body = framed(TOKENIZED)
    request = grpc(body)
    assert rewrite_model(request, "other") is request
    assert request.body == body


def test_frames_after_the_first_are_not_read() -> None:
    assert grpc(framed(TOKENIZED) + framed(b"\xff")).prompt == THREE


@pytest.mark.parametrize(
    ("body", "unread"),
    [
        pytest.param(b"", "empty", id="no body"),
        pytest.param(b"\0\0\0", "bad-shape", id="half a head"),
        pytest.param(framed(TOKENIZED)[:-1], "bad-shape", id="cut off"),
        pytest.param(framed(TOKENIZED, 1), "encoded", id="compressed"),
        pytest.param(framed(TOKENIZED, 2), "bad-shape", id="a flag that is none"),
        pytest.param(framed(b"\x12\x05\x12"), "bad-shape", id="no protobuf"),
        pytest.param(framed(field(3, b"\xff")), "bad-shape", id="text that is no UTF-8"),
        pytest.param(framed(b""), "no-prompt", id="an empty message"),
        pytest.param(framed(field(2, b"")), "no-prompt", id="nothing tokenized"),
        pytest.param(framed(field(2, field(1, b"text"))), "no-prompt", id="no token ids"),
    ],
)
def test_what_cannot_be_read_is_routed_by_load_with_the_reason(body: bytes, unread: str) -> None:
    request = grpc(body)
    assert (request.unread, request.format) == (unread, "vllm-grpc")
    assert request.prompt == b""


@pytest.mark.parametrize(
    "ids",
    [field(2, b"\x07" * (MAX_LISTED_COMMAS + 1)), bytes(MAX_TOKENIZED_BYTES + 1)],
    ids=["too many", "too large"],
)
def test_more_token_ids_than_any_context_holds_are_routed_unread(ids: bytes) -> None:
    assert read(field(2, ids)).unread == "too-large"
    assert read(field(2, ids), EMBED).unread == "too-large"


def test_other_content_types_are_not_read() -> None:
    assert grpc(framed(TOKENIZED), kind="application/grpc+json").unread == "content-type"
    assert grpc(framed(TOKENIZED), kind="application/grpc+proto").prompt == THREE
    assert grpc(framed(TOKENIZED), kind=None).prompt == THREE


def test_other_methods_are_routed_by_load() -> None:
    path = "/vllm.grpc.engine.VllmEngine/HealthCheck"
    assert grpc(framed(b""), path).unread == "no-parser"


def test_placeholder_tokens_carry_the_hash_of_their_image() -> None:
    ids = field(2, field(2, b"\x07" * 8))
    place = field(5, b"\x08\x02\x10\x03")  # offset 2, length 3

    def shown(mm_hash: bytes) -> InferenceRequest:
        pixels = field(2, b"pixels of " + mm_hash)
        return read(ids + field(7, pixels + place + field(6, mm_hash)))

    one, other = shown(b"aa"), shown(b"bb")
    assert one.multimodal
    assert one.media != other.media
    assert len(one.media) == 1
    assert one.prompt[:8] == other.prompt[:8] == b"\x07\0\0\0" * 2
    assert one.prompt[8:20] != other.prompt[8:20]
    assert one.prompt[20:] == other.prompt[20:] == b"\x07\0\0\0" * 3
    features = {
        "mm_hashes": {"image": ["aa"]},
        "mm_placeholders": {"image": [{"offset": 2, "length": 3}]},
    }
    same = parsed("/inference/v1/generate", {"token_ids": [7] * 8, "features": features})
    assert (one.prompt, one.media) == (same.prompt, same.media)


def test_images_that_stand_nowhere_tell_prompts_apart_from_the_start() -> None:
    one, other = (read(TOKENIZED + field(7, field(2, pixels))) for pixels in (b"a", b"b"))
    assert one.prompt[:8] != other.prompt[:8]
    assert one.prompt[8:] == other.prompt[8:] == THREE
    assert (one.prompt_tokens, len(one.media)) == (3, 1)
    assert one.media != other.media


def test_a_placeholder_outside_the_prompt_is_routed_unread() -> None:
    inputs = field(5, b"\x08\x03\x10\x01") + field(6, b"aa")  # the fourth token of three
    assert read(TOKENIZED + field(7, inputs)).unread == "bad-shape"


@pytest.mark.parametrize(
    "inputs",
    [field(5, b"") * 1_000_000, field(6, b"") * 1_000_000, bytes(MAX_MEDIA_BYTES + 1)],
    ids=["places", "hashes", "size"],
)
def test_a_body_of_nothing_but_empty_images_is_read_at_once(inputs: bytes) -> None:
    began = time.monotonic()
    request = read(TOKENIZED + field(7, inputs))
    assert time.monotonic() - began < 2.0
    assert len(request.media) == 1
