"""The engines' token APIs, read."""

from __future__ import annotations

import pytest

from epp.formats import FormatSet
from epp.formats.generate import SglangHttpParser
from epp.model import InferenceRequest
from tests.support.arrivals import FORMATS, parsed, post, sample_request

PATH = "/inference/v1/generate"


def sglang(body: object) -> InferenceRequest:
    return FormatSet([SglangHttpParser()]).parse(post("/generate", body), 0.0)


def test_a_real_generate_request_is_read() -> None:
    request = FORMATS.parse(sample_request("inference_generate_stream"), 0.0)
    assert request.format == "generate"
    assert request.prompt[:8].hex() == "0a0000000b000000"
    assert (request.prompt_tokens, request.max_output_tokens) == (50, 4)
    assert request.streaming
    assert request.model == "tiny"


def test_generate_takes_a_salt() -> None:
    assert parsed(PATH, {"token_ids": [1], "cache_salt": "s"}).salt == "s"


def test_placeholder_tokens_carry_the_hash_of_their_image() -> None:
    def prompt(mm_hash: str) -> bytes:
        features = {
            "mm_hashes": {"image": [mm_hash]},
            "mm_placeholders": {"image": [{"offset": 2, "length": 3}]},
        }
        request = parsed(PATH, {"token_ids": [7] * 8, "features": features})
        assert request.multimodal
        assert request.prompt_tokens == 8
        return request.prompt

    one, other = prompt("aa"), prompt("bb")
    assert len(one) == 32
    assert one[:8] == other[:8]
    assert one[8:20] != other[8:20]
    assert one[20:] == other[20:] == b"\x07\0\0\0" * 3


@pytest.mark.parametrize("offset", [-1, 8, 10**12], ids=["negative", "at the end", "far out"])
def test_a_placeholder_outside_the_prompt_is_routed_unread(offset: int) -> None:
    features = {
        "mm_hashes": {"image": ["aa"]},
        "mm_placeholders": {"image": [{"offset": offset, "length": 3}]},
    }
    request = parsed(PATH, {"token_ids": [7] * 8, "features": features})
    assert request.unread == "bad-shape"


@pytest.mark.parametrize(("lengths", "unread"), [((5, 3), ""), ((5, 4), "bad-shape")])
def test_placeholders_that_hold_more_than_the_prompt_are_routed_unread(
    lengths: tuple[int, int], unread: str
) -> None:
    first, second = lengths
    places = [{"offset": 0, "length": first}, {"offset": 8 - second, "length": second}]
    features = {"mm_hashes": {"image": ["aa", "bb"]}, "mm_placeholders": {"image": places}}
    assert parsed(PATH, {"token_ids": [7] * 8, "features": features}).unread == unread


@pytest.mark.parametrize("ids", [None, []], ids=["none", "empty"])
def test_no_tokens_are_routed_unread(ids: object) -> None:
    assert parsed(PATH, {"token_ids": ids}).unread == "no-prompt"


def test_sglang_is_read_only_where_configured() -> None:
    assert parsed("/generate", {"input_ids": [1]}).unread == "no-parser"
    assert sglang({"input_ids": [1]}).format == "sglang"


def test_a_sglang_request_is_read() -> None:
    request = sglang(
        {
            "input_ids": [1, 2],
            "sampling_params": {"max_new_tokens": 3},
            "stream": True,
            "extra_key": "tenant",
            "lora_path": "adapter",
        }
    )
    assert request.prompt.hex() == "0100000002000000"
    assert (request.salt, request.model, request.max_output_tokens) == ("tenant", "adapter", 3)
    assert request.streaming


def test_sglang_lists_are_known_by_their_first() -> None:
    request = sglang(
        {
            "text": ["abcd", "efgh"],
            "sampling_params": [{"max_new_tokens": 3}, {}],
            "extra_key": ["a", "b"],
            "lora_path": [None, "x"],
        }
    )
    assert request.prompt == b"\xff\xff\xffgabcd"
    assert (request.salt, request.model, request.max_output_tokens) == ("a", "", 3)


def test_sglang_images_differ_from_the_start() -> None:
    one = sglang({"text": "abcd", "image_data": "http://a/1"})
    other = sglang({"text": "abcd", "image_data": "http://a/2"})
    assert one.multimodal
    assert one.prompt[:8] != other.prompt[:8]
    assert not sglang({"text": "abcd", "input_ids": None, "image_data": None}).multimodal


def test_a_modality_that_a_client_made_up_is_other() -> None:
    hashes = {"image": ["aa"], "audio": ["bb"], "x" * 1000: ["cc"]}
    features = {"mm_hashes": hashes, "mm_placeholders": {}}
    body = {"token_ids": [1, 2], "features": features}
    media = parsed("/inference/v1/generate", body).media
    assert [medium.modality for medium in media] == ["image", "audio", "other"]


def test_each_kind_of_sglang_s_media_has_its_modality() -> None:
    body = {"text": "hi", "audio_data": "s", "video_data": "v", "image_data": "i"}
    media = sglang(body).media
    assert [medium.modality for medium in media] == ["image", "video", "audio"]
