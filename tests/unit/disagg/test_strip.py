"""What clients say about a KV cache's way is removed, however they write it; nothing else is."""

from __future__ import annotations

import json
from typing import Any

import pytest

from epp import headers
from epp.disagg.strip import FIELDS, stripped
from epp.errors import BadRequest

HARM: dict[str, Any] = {"do_remote_prefill": True}


@pytest.mark.parametrize("field", sorted(FIELDS))
def test_a_field_is_removed_and_every_other_value_is_left_as_written(field: str) -> None:
    body = b'{"prompt":"caf\\u00e9", "%s": {"do_remote_prefill":true},"temperature":1.0e-1}'
    assert stripped(body % field.encode()) == b'{"prompt":"caf\\u00e9","temperature":1.0e-1}'


@pytest.mark.parametrize(
    "body",
    [
        pytest.param({"vllm_xargs": {"kv_transfer_params": "x", "a": 1}}, id="vllm_xargs"),
        pytest.param(
            {"sampling_params": {"extra_args": {"kv_transfer_params": HARM, "a": 1}}}, id="sampling"
        ),
    ],
)
def test_what_engines_merge_from_inner_objects_is_removed_too(body: dict[str, Any]) -> None:
    left = stripped(json.dumps({"prompt": "p", **body}).encode())
    assert b"kv_transfer_params" not in left
    assert b'"a":1' in left


HIDDEN = [
    pytest.param(b'{"kv\\u005ftransfer_params":{"do_remote_prefill":true}}', id="escaped"),
    pytest.param(b'{"kv_transfer_params":1,"kv_transfer_params":{"a":1}}', id="twice"),
    pytest.param(b'{"top_p":NaN,"kv_transfer_params":{}}', id="not a number"),
    pytest.param(b'{"a":"\\ud800","kv_transfer_params":{}}', id="half of a pair"),
    pytest.param(b'{"a":NaN,"kv\\u005Ftransfer_params":{}}', id="not a number, escaped"),
    pytest.param(b'{"a":NaN,"vllm_xargs":{"kv_transfer_params":1}}', id="not a number, inside"),
    pytest.param('{"kv_transfer_params":{}}'.encode("utf-16"), id="utf-16 with a mark"),
    pytest.param('{"kv_transfer_params":{}}'.encode("utf-16-be"), id="utf-16 without"),
    pytest.param('{"kv_transfer_params":{}}'.encode("utf-32"), id="utf-32"),
    pytest.param(b'\xef\xbb\xbf{"kv_transfer_params":{}}', id="with a byte order mark"),
    pytest.param(b' \r\n\t{"kv_transfer_params":{}}', id="after white space"),
]


@pytest.mark.parametrize("body", HIDDEN)
def test_no_spelling_that_an_engine_reads_gets_through(body: bytes) -> None:
    assert "kv_transfer_params" in str(json.loads(body))  # vLLM reads bodies with this
    assert "kv_transfer_params" not in str(json.loads(stripped(body)))


LEFT = [
    pytest.param(b'{"prompt": "what is kv_transfer_params?" }', id="a prompt about it"),
    pytest.param(b'{"messages":[{"kv_transfer_params":{}}]}', id="deeper, where nobody looks"),
    pytest.param(b'{"sampling_params":{"max_tokens":1}, "vllm_xargs":{"a":1}}', id="harmless"),
    pytest.param(b'{"sampling_params":[{"max_new_tokens":1}]}', id="a list of parameters"),
    pytest.param(b'[{"kv_transfer_params":{}}]', id="a list"),
    pytest.param(b"", id="nothing"),
    pytest.param(b"--x\r\nkv_transfer_params", id="no JSON"),
    pytest.param(b'{"a":NaN}', id="not a number"),
    pytest.param(b'{"kv_transfer_params":', id="cut off"),
    pytest.param(b"{\xff\xfe\xfd kv_transfer_params", id="bytes"),
]


@pytest.mark.parametrize("body", LEFT)
def test_any_other_body_is_left_as_it_is(body: bytes) -> None:
    assert stripped(body) is body


def test_a_body_too_deep_to_be_looked_at_is_refused_if_it_may_hide_something() -> None:
    deep = b"[" * 200_000 + b"]" * 200_000
    with pytest.raises(BadRequest, match="too deep"):
        stripped(b'{"kv_transfer_params":{},"a":' + deep + b"}")
    harmless = b'{"a":' + deep + b"}"
    assert stripped(harmless) is harmless


def test_clients_cannot_name_endpoints_of_other_stages_by_header() -> None:
    named = {headers.PREFILLER, headers.ENCODERS, headers.DATA_PARALLEL, headers.KV_SOURCE}
    assert named <= headers.CONTROL


@pytest.mark.parametrize("body", LEFT)
def test_a_long_body_that_says_nothing_of_it_is_left_as_it_is(body: bytes) -> None:
    spaces = b" " * 100
    if body.startswith((b'{"a":NaN', b'{"kv_transfer_params":', b"{\xff")):
        with pytest.raises(BadRequest, match="too long"):  # only a slow look could tell
            stripped(body + spaces, most=100)
    else:
        assert stripped(body + spaces, most=100) == body + spaces


@pytest.mark.parametrize("body", HIDDEN)
def test_a_body_too_long_to_be_taken_apart_is_refused_if_it_says_where_a_cache_is(
    body: bytes,
) -> None:
    assert stripped(body, most=len(body)) == stripped(body)
    with pytest.raises(BadRequest, match=f"the body of {len(body)} bytes"):
        stripped(body, most=len(body) - 1)
