"""Vertex AI's gRPC predictions, read from bytes put together by hand."""

from __future__ import annotations

import json

import pytest

from epp.formats import FormatSet
from epp.formats.grpc.vertex import VertexAIParser
from epp.formats.splice import rewrite_model
from epp.model import InferenceRequest
from tests.support.arrivals import parsed, post
from tests.unit.formats.test_vllm_grpc import field, framed

SERVICE = "/google.cloud.aiplatform.v1beta1.PredictionService/"
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "stream": True}
RESPONSES = {"model": "m", "input": "hello", "max_output_tokens": 4}
ENDPOINT = field(1, b"projects/p/locations/l/endpoints/e")
FORMATS = FormatSet([VertexAIParser()])


def read(method: str, message: bytes, service: str = SERVICE) -> InferenceRequest:
    arrival = post(service + method, framed(message), content_type="application/grpc")
    return FORMATS.parse(arrival, 0.0)


def carrying(data: bytes) -> bytes:
    """Field 1: the endpoint; field 2: an HttpBody, with its type in field 1 and data in field 2."""
    return ENDPOINT + field(2, field(1, b"application/json") + field(2, data))


def test_a_chat_is_read_like_openais() -> None:
    request = read("ChatCompletions", carrying(json.dumps(CHAT).encode()))
    same = parsed("/v1/chat/completions", CHAT)
    assert (request.format, request.unread) == ("vertex-chat", "")
    assert (request.model, request.streaming) == ("m", True)
    assert (request.prompt, request.prompt_tokens) == (same.prompt, same.prompt_tokens)


@pytest.mark.parametrize("method", ["RawPredict", "StreamRawPredict"])
def test_a_raw_prediction_is_of_the_responses_api(method: str) -> None:
    request = read(method, carrying(json.dumps(RESPONSES).encode()))
    assert (request.format, request.model) == ("vertex-responses", "m")
    assert request.prompt == b'\xff\xff\xffr\xffM"user"\xffThello'
    assert request.max_output_tokens == 4


def test_the_settled_version_of_the_service_is_read_too() -> None:
    service = "/google.cloud.aiplatform.v1.PredictionService/"
    request = read("RawPredict", carrying(json.dumps(RESPONSES).encode()), service)
    assert request.model == "m"


def test_other_methods_are_routed_by_load() -> None:
    assert read("Predict", carrying(b"{}")).unread == "no-parser"


def test_a_model_inside_a_message_is_never_rewritten() -> None:
    request = read("ChatCompletions", carrying(json.dumps(CHAT).encode()))
    assert rewrite_model(request, "other") is request


@pytest.mark.parametrize(
    ("message", "unread"),
    [
        pytest.param(ENDPOINT, "no-prompt", id="no HttpBody"),
        pytest.param(carrying(b""), "no-prompt", id="no data"),
        pytest.param(carrying(b"{"), "bad-json", id="broken JSON"),
        pytest.param(carrying(b'{"a": ' + b"[" * 100_000), "too-deep", id="deep JSON"),
        pytest.param(b"\x12\x05", "bad-shape", id="no protobuf"),
    ],
)
def test_what_cannot_be_read_is_routed_by_load_with_the_reason(message: bytes, unread: str) -> None:
    assert read("ChatCompletions", message).unread == unread


def test_of_json_of_the_wrong_shape_the_model_is_read() -> None:
    request = read("ChatCompletions", carrying(b'{"model": "m", "messages": 5}'))
    assert (request.model, request.unread) == ("m", "bad-shape")
