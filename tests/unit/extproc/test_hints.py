"""What is read of the gateway's word on a request's pool."""

from __future__ import annotations

from typing import Any

import pytest
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from hypothesis import given
from hypothesis import strategies as st

from epp.extproc.hints import Hints, read_hints
from tests.support import ext_proc

FILTER = "envoy.filters.http.ext_proc"
PRINTED = (
    'filter_metadata { key: "com.example" value { fields { key: "pool" value { string_value: '
    '"wrong" } } } } filter_metadata { key: "epp" value { fields { key: "more" value { '
    'string_value: "x" } } fields { key: "pool" value { string_value: "models/chat" } } } }'
)


def head(attributes: dict[str, str] | None = None, **more: Any) -> bytes:
    message = ext_proc.request_head(**more)
    for name, value in (attributes or {}).items():
        message.attributes[FILTER].fields[name].string_value = value
    return bytes(message.SerializeToString())


def test_a_message_without_a_word_says_nothing() -> None:
    assert read_hints(head()) == Hints()


def test_attributes_name_cluster_and_route() -> None:
    found = read_hints(head({"xds.cluster_name": "c", "xds.route_name": "r", "request.path": "/"}))
    assert found == Hints(clusters=("c",), routes=("r",))


def test_metadata_of_the_call_tells_the_pool() -> None:
    assert read_hints(head(), [("epp-pool", "chat"), ("user-agent", "x")]) == Hints(("chat",))


def test_a_header_of_the_request_tells_nothing() -> None:
    assert read_hints(head(headers={"epp-pool": "chat", "x-epp-pool": "chat"})) == Hints()


@pytest.mark.parametrize(
    ("metadata", "pool"),
    [
        ({"epp": {"pool": "chat"}}, "chat"),
        (
            {"aigateway.envoy.io": {"per_route_rule_inference_pool": "ns/chat/svc/9002/d/false"}},
            "ns/chat",
        ),
    ],
)
def test_metadata_of_a_filter_tells_the_pool(metadata: dict[str, Any], pool: str) -> None:
    assert read_hints(head(metadata=metadata)) == Hints((pool,))


def test_other_metadata_tells_nothing() -> None:
    found = read_hints(head(metadata={"epp": {"other": "x"}, "envoy.lb": {"pool": "y"}}))
    assert found == Hints()


def test_metadata_of_the_route_is_read_as_it_is_printed() -> None:
    assert read_hints(head({"xds.route_metadata": PRINTED})) == Hints(("models/chat",))


def test_a_key_of_the_routes_metadata_may_be_asked_for_alone() -> None:
    asked = "xds.route_metadata.filter_metadata['epp']['pool']"
    assert read_hints(head({asked: "chat"})) == Hints(("chat",))
    gateway = (
        "xds.route_metadata.filter_metadata['aigateway.envoy.io']['per_route_rule_inference_pool']"
    )
    assert read_hints(head({gateway: "ns/chat/svc"})) == Hints(("ns/chat",))
    assert read_hints(head({"xds.route_metadata.filter_metadata['x']['y']": "chat"})) == Hints()


def test_what_is_no_message_says_nothing() -> None:
    assert read_hints(b"\xff\xff") == Hints()


@given(st.binary(max_size=200))
def test_no_bytes_make_it_raise(data: bytes) -> None:
    read_hints(data)


@given(st.text(max_size=300))
def test_no_printed_metadata_makes_it_raise_or_hang(text: str) -> None:
    read_hints(head({"xds.route_metadata": text}))


def test_an_empty_name_is_none() -> None:
    message = pb.ProcessingRequest.FromString(head({"xds.cluster_name": " "}))
    assert read_hints(message.SerializeToString(), [("epp-pool", "")]) == Hints()
