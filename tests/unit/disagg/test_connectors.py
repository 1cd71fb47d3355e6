"""Connectors: one body and one answer in, the bodies of both legs out."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from epp.disagg.connectors import CONNECTORS, BadAnswer, Mode, Transfer, Unsplittable

DATA = Path(__file__).parents[2] / "data" / "disagg"
VECTORS = [
    pytest.param(file.stem, vector, id=f"{file.stem}: {vector['case']}")
    for file in sorted(DATA.glob("*.json"))
    for vector in msgspec.json.decode(file.read_bytes())
]


def transfer(path: str = "/v1/completions", **told: Any) -> Transfer:
    return Transfer("t-1", path, "10.0.0.2", **told)


@pytest.mark.parametrize(("name", "vector"), VECTORS)
def test_each_body_and_answer_make_the_bodies_of_both_legs(
    name: str, vector: dict[str, Any]
) -> None:
    connector, body = CONNECTORS[name], msgspec.json.encode(vector["body"])
    this = transfer(vector["path"], **vector.get("transfer", {}))
    if "unsplittable" in vector:
        with pytest.raises(Unsplittable, match=f"^{vector['unsplittable']}$"):
            connector.prefill_body(body, this)
        return
    if "prefill" in vector:
        assert msgspec.json.decode(connector.prefill_body(body, this)) == vector["prefill"]
    answer = msgspec.json.encode(vector["answer"]) if "answer" in vector else b""
    if "bad_answer" in vector:
        with pytest.raises(BadAnswer, match=f"^{vector['bad_answer']}$"):
            connector.decode_body(body, answer, this)
    elif "decode" in vector:
        assert msgspec.json.decode(connector.decode_body(body, answer, this)) == vector["decode"]


def test_values_go_on_byte_for_byte_as_the_client_wrote_them() -> None:
    body = b'{"prompt" : "caf\\u00e9 \xc3\xa9", "temperature":1.0e-1,"seed":123456789012345678901}'
    made = CONNECTORS["nixlv2"].prefill_body(body, transfer())
    for part in (b'"caf\\u00e9 \xc3\xa9"', b"1.0e-1", b"123456789012345678901"):
        assert part in made


CHAT, GENERATE, MESSAGES = "/v1/chat/completions", "/inference/v1/generate", "/v1/messages"


@pytest.mark.parametrize("name", ["nixlv2", "mooncake", "shared-storage"])
@pytest.mark.parametrize(
    ("path", "body", "why"),
    [
        ("", {"max_tokens": 0}, "invalid"),
        ("", {"max_tokens": -5}, "invalid"),
        ("", {"max_tokens": 1.5}, "invalid"),
        ("", {"max_tokens": "many"}, "invalid"),
        ("", {"max_tokens": [1]}, "invalid"),
        ("", {"max_tokens": 4, "min_tokens": 5}, "invalid"),
        ("", {"min_tokens": -1}, "invalid"),
        (CHAT, {"max_completion_tokens": 0}, "invalid"),
        (CHAT, {"max_tokens": 8, "max_completion_tokens": -1}, "invalid"),
        (CHAT, {"stream_options": {"include_usage": True}}, "invalid"),
        (CHAT, {"stream": False, "stream_options": {}}, "invalid"),
        (CHAT, {"stream": "perhaps"}, "invalid"),
        ("/v1/responses", {"max_output_tokens": 0}, "invalid"),
        (MESSAGES, {"messages": []}, "invalid"),
        (GENERATE, {"sampling_params": {"max_tokens": 0}}, "invalid"),
        (GENERATE, {"sampling_params": {"n": 2}}, "choices"),
        (GENERATE, {"sampling_params": {"prompt_logprobs": 0}}, "prompt-logprobs"),
        ("", {"prompt_embeds": ["a", "b"]}, "prompts"),
        ("", {"prompt": [[1], [2]]}, "prompts"),
    ],
)
def test_what_the_decoding_engine_would_refuse_or_share_out_is_not_computed_elsewhere(
    name: str, path: str, body: dict[str, Any], why: str
) -> None:
    """The cache would stay on its lease: a client could fill a prefill engine with such."""
    connector = CONNECTORS[name]
    with pytest.raises(Unsplittable, match=f"^{why}$"):
        connector.prefill_body(msgspec.json.encode(body), transfer(path or "/v1/completions"))


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({"text": ["a", "b"]}, "prompts"),
        ({"input_ids": [[1, 2], [3]]}, "prompts"),
        ({"text": "a", "sampling_params": {"n": 2}}, "choices"),
        ({"text": "a", "sampling_params": [{}, {}]}, "not-an-object"),
    ],
)
def test_several_prompts_of_sglangs_own_requests_share_no_room(
    body: dict[str, Any], why: str
) -> None:
    with pytest.raises(Unsplittable, match=f"^{why}$"):
        CONNECTORS["sglang"].prefill_body(msgspec.json.encode(body), transfer("/generate"))


def test_a_format_of_the_answer_is_no_prompt() -> None:
    body = {"input": "a", "text": {"format": {"type": "text"}}, "sampling_params": None}
    made = CONNECTORS["sglang"].prefill_body(msgspec.json.encode(body), transfer("/v1/responses"))
    assert msgspec.json.decode(made)["text"] == body["text"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("", {"prompt": "a"}),
        ("", {"prompt": [1, 2], "max_tokens": None, "stream": None, "stream_options": None}),
        ("", {"prompt": ["a"], "max_tokens": 1, "min_tokens": 1}),
        ("", {"prompt": "a", "max_tokens": 8.0, "min_tokens": 0}),
        (CHAT, {"stream": True, "stream_options": {"include_usage": True}, "n": 1}),
        (CHAT, {"max_completion_tokens": 1, "response_format": {"type": "json_object"}}),
        (MESSAGES, {"max_tokens": 5}),
        (GENERATE, {"sampling_params": {"max_tokens": None, "n": 1}}),
    ],
)
def test_what_both_engines_take_is_computed_elsewhere(path: str, body: dict[str, Any]) -> None:
    this = transfer(path or "/v1/completions")
    made = msgspec.json.decode(CONNECTORS["nixlv2"].prefill_body(msgspec.json.encode(body), this))
    assert made["stream"] is False
    assert "stream_options" not in made
    assert made.get("max_tokens", 1) == 1


@pytest.mark.parametrize("answer", [b"", b"<html>", b'{"kv_transfer_params":{', b"\xff"])
def test_a_broken_answer_is_refused(answer: bytes) -> None:
    with pytest.raises(BadAnswer, match=re.escape("not-an-object")):
        CONNECTORS["nixlv2"].decode_body(b'{"prompt":"a"}', answer, transfer())


TOLD = {
    "do_remote_prefill": True, "do_remote_decode": False, "remote_engine_id": "e",
    "remote_host": "10.0.0.2", "remote_port": 5600, "remote_block_ids": [[1, 2], []],
    "remote_request_id": "r",
}  # fmt: skip


@pytest.mark.parametrize(
    "wrong",
    [
        {"remote_port": 0}, {"remote_port": 65536}, {"remote_port": "5600"}, {"remote_port": True},
        {"remote_host": ""}, {"remote_host": None}, {"remote_engine_id": ""},
        {"remote_engine_id": 7}, {"remote_block_ids": []}, {"remote_block_ids": [[]]},
        {"remote_block_ids": [None]}, {"remote_block_ids": ["a"]}, {"remote_block_ids": [["a"]]},
        {"remote_block_ids": [[-1]]}, {"remote_block_ids": "abc"}, {"do_remote_prefill": "true"},
        {"do_remote_prefill": False}, {"do_remote_decode": True}, {"remote_request_id": ""},
        {"remote_request_id": None}, {"remote_request_id": 7}, {"tp_size": 0}, {"tp_size": "1"},
        {"dcp_size": None}, {"pp_size": 1.5}, {"remote_num_tokens": -1}, {"remote_block_size": 0},
        {"remote_blocks_expiry_time": "soon"},
    ],
    ids=str,
)  # fmt: skip
def test_parameters_that_no_engine_could_use_are_refused(wrong: dict[str, Any]) -> None:
    def decode(told: Any) -> bytes:
        answer = msgspec.json.encode({"kv_transfer_params": told})
        return CONNECTORS["nixlv2"].decode_body(b"{}", answer, transfer())

    assert msgspec.json.decode(decode(TOLD)) == {"kv_transfer_params": TOLD}
    assert decode(TOLD | {"remote_num_tokens": 32, "remote_blocks_expiry_time": 1.5, "new": [{}]})
    old = {name: value for name, value in TOLD.items() if name != "remote_request_id"}
    assert decode(old | {"remote_block_ids": [1, 2]})  # of vLLM before groups of layers
    with pytest.raises(BadAnswer, match="incomplete-parameters"):
        decode(TOLD | wrong)


def test_parameters_for_which_an_engine_would_wait_for_ever_are_refused() -> None:
    """vLLM 0.32 waits for a cache without ``remote_request_id``, but never asks for it."""
    told = {name: value for name, value in TOLD.items() if name != "remote_request_id"}
    answer = msgspec.json.encode({"kv_transfer_params": told})
    with pytest.raises(BadAnswer, match="incomplete-parameters"):
        CONNECTORS["nixlv2"].decode_body(b"{}", answer, transfer())


@pytest.mark.parametrize("told", [[TOLD], "x", 1, True], ids=str)
def test_parameters_that_are_no_object_are_refused(told: Any) -> None:
    answer = msgspec.json.encode({"kv_transfer_params": told})
    with pytest.raises(BadAnswer):
        CONNECTORS["nixlv2"].decode_body(b"{}", answer, transfer())


def test_each_attempt_has_a_room_of_its_own_that_fits_63_bits() -> None:
    rooms = {Transfer(f"t-{i}", "/", "h").room for i in range(100)}
    assert len(rooms) == 100
    assert all(0 <= room < 2**63 for room in rooms)


def test_the_decode_leg_of_nixl_waits_for_the_prefill_leg() -> None:
    assert CONNECTORS["nixlv2"].mode is Mode.SEQUENTIAL
