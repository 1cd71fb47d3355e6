"""Protobuf to nouns and back; gRPC is out."""

from __future__ import annotations

import pytest
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb

from epp.extproc import wire
from epp.extproc.messages import (
    Answer,
    Body,
    Decision,
    ForwardAtOnce,
    ForwardHead,
    ForwardWhole,
    Head,
    Mode,
    Modes,
    Named,
    PassBody,
    PassHead,
    PassTrailers,
    Piece,
    Reply,
    Side,
    Trailers,
)
from tests.support import ext_proc as gateway

HINT = "envoy.lb.subset_hint"
KEY = "x-gateway-destination-endpoint-subset"


def decode(message: pb.ProcessingRequest) -> object:
    return wire.decode(message.SerializeToString())


def encode(reply: object) -> pb.ProcessingResponse:
    return pb.ProcessingResponse.FromString(wire.encode(reply))  # type: ignore[arg-type]


def head(message: pb.ProcessingRequest) -> Head:
    decoded = decode(message)
    assert isinstance(decoded, Head)
    return decoded


def test_a_head_with_its_modes() -> None:
    decoded = head(gateway.request_head({"X-A": "1"}, ends=True, modes=(4, 0)))
    assert decoded.side is Side.REQUEST
    assert decoded.ends
    assert decoded.modes == Modes(Mode.FULL_DUPLEX_STREAMED, Mode.NONE)
    assert decoded.headers["x-a"] == "1"
    assert decoded.subset is None


def test_no_modes_where_none_are_told() -> None:
    assert head(gateway.request_head(modes=None)).modes is None


def test_a_mode_newer_than_this_picker_is_decided_at_the_head() -> None:
    assert head(gateway.request_head(modes=(9, 9))).modes == Modes(Mode.GRPC, Mode.GRPC)


def test_raw_value_is_read_before_value() -> None:
    message = pb.ProcessingRequest()
    headers = message.request_headers.headers.headers
    headers.add(key="a", value="old", raw_value=b"new")
    headers.add(key="b", value="old")
    assert head(message).headers == {"a": "new", "b": "old"}


@pytest.mark.parametrize("raw", ["modèle".encode(), b"\xff\xfe", b"plain"])
def test_a_header_value_goes_out_as_the_bytes_it_came_in_as(raw: bytes) -> None:
    value = head(gateway.request_head([("x-a", raw)])).headers["x-a"]
    reply = encode(PassHead(Side.REQUEST, {"x-a": value}))
    (option,) = reply.request_headers.response.header_mutation.set_headers
    assert option.header.raw_value == raw
    assert option.header.value == ""


def test_headers_of_one_name_are_joined() -> None:
    pairs = [("a", "1"), ("a", "2"), ("cookie", "x=1"), ("cookie", "y=2")]
    headers = head(gateway.request_head(pairs)).headers
    assert (headers["a"], headers["cookie"]) == ("1, 2", "x=1; y=2")


@pytest.mark.parametrize(
    ("metadata", "subset"),
    [
        pytest.param({HINT: {KEY: ["a:1", "b"]}}, ("a:1", "b"), id="list"),
        pytest.param({HINT: {KEY: "a:1, b"}}, ("a:1", "b"), id="string with commas"),
        pytest.param({HINT: {KEY: []}}, (), id="empty list"),
        pytest.param({HINT: {KEY: ""}}, (), id="empty string"),
        pytest.param({HINT: {}}, None, id="namespace only"),
        pytest.param({"other": {KEY: ["a:1"]}}, None, id="other namespace"),
        pytest.param({}, None, id="absent"),
    ],
)
def test_the_subset_hint(metadata: dict[str, dict[str, object]], subset: object) -> None:
    assert head(gateway.request_head(metadata=metadata)).subset == subset
    body = decode(gateway.request_body(b"x", metadata=metadata))
    assert isinstance(body, Body)
    assert body.subset == subset


def test_the_served_endpoint_comes_with_the_responses_head() -> None:
    assert head(gateway.response_head(served="10.0.0.1:8000")).served == "10.0.0.1:8000"
    assert head(gateway.response_head()).served == ""


def test_bodies_and_trailers() -> None:
    assert decode(gateway.request_body(b"x", ends=True)) == Body(Side.REQUEST, b"x", ends=True)
    assert decode(gateway.response_body(b"y")) == Body(Side.RESPONSE, b"y")
    assert decode(gateway.request_trailers()) == Trailers(Side.REQUEST)
    assert decode(gateway.response_trailers()) == Trailers(Side.RESPONSE)


def test_a_message_that_only_informs_wants_no_answer() -> None:
    message = gateway.request_head()
    message.observability_mode = True
    assert decode(message) is None
    assert decode(pb.ProcessingRequest()) is None


# --- out ---------------------------------------------------------------------------

DECISION = Decision("a:1", {"x-gateway-destination-endpoint": "a:1"}, ("x-bad",), {"a:1": 0.5})
USUAL = Decision("a:1", {"x-gateway-destination-endpoint": "a:1"})


def test_the_decision_stands_in_header_and_metadata() -> None:
    reply = encode(ForwardHead(DECISION))
    assert reply.WhichOneof("response") == "request_headers"
    assert reply.request_headers.response.clear_route_cache
    assert gateway.destination(reply) == "a:1"
    assert gateway.removed(reply) == {"x-bad"}
    fields = reply.dynamic_metadata.fields["envoy.lb"].struct_value.fields
    scores = fields["x-gateway-destination-endpoint-scores"].struct_value.fields
    assert scores["a:1"].number_value == 0.5


def test_a_whole_body_is_replaced_only_if_it_changed() -> None:
    kept, changed = encode(ForwardWhole(DECISION)), encode(ForwardWhole(DECISION, b"new"))
    assert not kept.request_body.response.HasField("body_mutation")
    assert changed.request_body.response.body_mutation.body == b"new"
    assert gateway.destination(changed) == "a:1"


@pytest.mark.parametrize("decision", [DECISION, USUAL], ids=["with more", "usual"])
def test_head_and_body_in_one_reply_decide_as_the_head_alone_does(decision: Decision) -> None:
    alone, both = encode(ForwardHead(decision)), encode(ForwardAtOnce(decision, b"new"))
    response = both.request_headers.response
    assert response.status == pb.CommonResponse.CONTINUE_AND_REPLACE
    assert response.body_mutation.body == b"new"
    response.ClearField("status")
    response.ClearField("body_mutation")
    assert both == alone


@pytest.mark.parametrize(
    "reply",
    [
        ForwardHead(USUAL),
        ForwardHead(DECISION),
        ForwardAtOnce(USUAL, b"new"),
        ForwardWhole(DECISION, b"new"),
        PassTrailers(Side.REQUEST, DECISION),
    ],
    ids=lambda reply: type(reply).__name__,
)
@pytest.mark.parametrize("name", ["5f-1", "x" * 99])
def test_a_name_goes_along_in_metadata_of_our_own_and_changes_nothing_else(
    reply: Reply, name: str
) -> None:
    alone, named = encode(reply), encode(Named(reply, name))  # type: ignore[arg-type]
    told = named.dynamic_metadata.fields.pop("epp").struct_value
    assert dict(told) == {"exchange": name}
    assert named == alone


def test_pieces_are_streamed_replies() -> None:
    reply = encode(Piece(Side.RESPONSE, b"x", ends=True))
    streamed = reply.response_body.response.body_mutation.streamed_response
    assert (streamed.body, streamed.end_of_stream) == (b"x", True)


@pytest.mark.parametrize("side", list(Side))
def test_what_passes_is_answered_without_a_change(side: Side) -> None:
    replies = [encode(PassHead(side)), encode(PassBody(side)), encode(PassTrailers(side))]
    names = [f"{side.value}_headers", f"{side.value}_body", f"{side.value}_trailers"]
    assert gateway.kinds(replies) == names
    assert [reply.ByteSize() for reply in replies] == [2, 2, 2]


def test_a_decision_with_the_trailers_is_metadata_only() -> None:
    reply = encode(PassTrailers(Side.REQUEST, DECISION))
    assert reply.WhichOneof("response") == "request_trailers"
    assert gateway.metadata_destination(reply) == "a:1"


def test_an_answer() -> None:
    reply = encode(Answer(429, {"retry-after": "1"}, b"busy")).immediate_response
    assert (reply.status.code, reply.body) == (429, b"busy")
    (option,) = reply.headers.set_headers
    assert (option.header.key, option.header.raw_value) == ("retry-after", b"1")
    assert not reply.HasField("grpc_status")
