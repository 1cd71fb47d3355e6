"""Protobuf to session messages and back, pure.

Replies that never differ are serialised once. Header values go out as ``raw_value`` only:
which of the two fields Envoy reads depends on its version and runtime flags, but all read this.

**Source:** envoy/service/ext_proc/v3/external_processor.proto; Gateway API Inference Extension,
proposal 004, for the metadata.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from envoy.config.core.v3 import base_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from google.protobuf.message import DecodeError

from epp.errors import Internal
from epp.extproc.messages import (
    Answer,
    Body,
    Decision,
    ForwardAtOnce,
    ForwardHead,
    ForwardWhole,
    Head,
    Message,
    Mode,
    Modes,
    Named,
    PassBody,
    PassHead,
    PassTrailers,
    Piece,
    Reply,
    Reporting,
    Side,
    Trailers,
)
from epp.headers import (
    DESTINATION,
    DESTINATION_NAMESPACE,
    EXCHANGE,
    OWN_NAMESPACE,
    SCORES,
    SERVED,
    SUBSET,
    SUBSET_NAMESPACE,
)

SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
REFUSED = "refused_by_endpoint_picker"
"""The response code details of our own answers, as the gateway's access log has them."""

_OVERWRITE = base_pb2.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
_SIDES = {
    "request_headers": Side.REQUEST,
    "request_body": Side.REQUEST,
    "request_trailers": Side.REQUEST,
    "response_headers": Side.RESPONSE,
    "response_body": Side.RESPONSE,
    "response_trailers": Side.RESPONSE,
}

# --- from the gateway --------------------------------------------------------------


def decode(data: bytes) -> Message | None:
    """Translate one ``ProcessingRequest``; None if it wants no answer or is not known to us.

    Raises:
        Internal: it is not one.
    """
    try:
        message = pb.ProcessingRequest.FromString(data)
    except DecodeError:
        raise Internal("the gateway sent something that is no ProcessingRequest") from None
    kind = message.WhichOneof("request")
    if kind is None or message.observability_mode:
        return None
    side = _SIDES[kind]
    modes = _modes(message.protocol_config) if message.HasField("protocol_config") else None
    subset, served = None, ""
    if message.HasField("metadata_context"):
        metadata = message.metadata_context.filter_metadata
        if side is Side.REQUEST:
            subset = _subset(metadata)
        else:
            served = _served(metadata)
    part = getattr(message, kind)
    if kind.endswith("headers"):
        return Head(side, _headers(part), part.end_of_stream, subset, served, modes)
    if kind.endswith("body"):
        return Body(side, part.body, part.end_of_stream, subset, modes)
    return Trailers(side, subset, modes)


def _headers(part: Any) -> dict[str, str]:
    """Header values by lower-case name; several of one name are joined as RFC 9110, 5.2 says."""
    pairs = part.headers.headers
    try:
        headers = {pair.key.lower(): pair.raw_value.decode() or pair.value for pair in pairs}
    except UnicodeDecodeError:
        return _joined(pairs)
    return headers if len(headers) == len(pairs) else _joined(pairs)


def _joined(pairs: Any) -> dict[str, str]:
    headers: dict[str, str] = {}
    for pair in pairs:
        name = pair.key.lower()
        value = pair.raw_value.decode("utf-8", "surrogateescape") or pair.value
        if name in headers:
            value = f"{headers[name]}{'; ' if name == 'cookie' else ', '}{value}"
        headers[name] = value
    return headers


def _modes(config: Any) -> Modes:
    return _pair(config.request_body_mode, config.response_body_mode)


@lru_cache(maxsize=64)  # a gateway has one pair, or few
def _pair(request: int, response: int) -> Modes:
    return Modes(_mode(request), _mode(response))


def _mode(number: int) -> Mode:
    try:
        return Mode(number)
    except ValueError:
        return Mode.GRPC  # a mode newer than us: decide at the head, pass pieces on as they come


def _subset(metadata: Any) -> tuple[str, ...] | None:
    """The subset hint: a list of strings, or one with commas; () if it is there but empty."""
    if SUBSET_NAMESPACE not in metadata:
        return None
    fields = metadata[SUBSET_NAMESPACE].fields
    if SUBSET not in fields:
        return None
    hint = fields[SUBSET]
    if hint.WhichOneof("kind") == "list_value":
        names = [value.string_value for value in hint.list_value.values]
    else:
        names = hint.string_value.split(",")
    return tuple(name.strip() for name in names if name.strip())


def _served(metadata: Any) -> str:
    if DESTINATION_NAMESPACE not in metadata:
        return ""
    fields = metadata[DESTINATION_NAMESPACE].fields
    return str(fields[SERVED].string_value) if SERVED in fields else ""


# --- to the gateway ----------------------------------------------------------------


def encode(reply: Reply) -> bytes:
    """Translate one reply to a serialised ``ProcessingResponse``. No piece is split here."""
    return _ENCODERS[type(reply)](reply)  # type: ignore[no-any-return]


def _forward_head(reply: ForwardHead) -> bytes:
    decision = reply.decision
    usual = {DESTINATION: decision.destination}
    if decision.scores is None and not decision.remove and decision.set == usual:
        return _only_destination(decision.destination)
    return _head(decision)


def _head(decision: Decision) -> bytes:
    message = pb.ProcessingResponse()
    _decide(message, message.request_headers.response, decision)
    return message.SerializeToString()  # type: ignore[no-any-return]


@lru_cache(maxsize=4096)
def _only_destination(destination: str) -> bytes:
    """The usual decision, which changes nothing but the destination; made anew it costs 6 us."""
    return _head(Decision(destination, {DESTINATION: destination}))


def _forward_whole(reply: ForwardWhole) -> bytes:
    message = pb.ProcessingResponse()
    response = message.request_body.response
    _decide(message, response, reply.decision)
    if reply.data is not None:
        response.body_mutation.body = reply.data
    return message.SerializeToString()  # type: ignore[no-any-return]


def _forward_at_once(reply: ForwardAtOnce) -> bytes:
    message = pb.ProcessingResponse()
    response = message.request_headers.response
    response.status = pb.CommonResponse.CONTINUE_AND_REPLACE
    response.body_mutation.body = reply.data
    head = _forward_head(ForwardHead(reply.decision))
    # Serialised messages one after the other are their merger.
    return head + message.SerializeToString()  # type: ignore[no-any-return]


def _decide(message: Any, response: Any, decision: Decision) -> None:
    response.clear_route_cache = True
    _mutate(response.header_mutation, decision.set, decision.remove)
    _metadata(message, decision)


def _metadata(message: Any, decision: Decision) -> None:
    fields = message.dynamic_metadata.fields[DESTINATION_NAMESPACE].struct_value.fields
    fields[DESTINATION].string_value = decision.destination
    if decision.scores:
        scores = fields[SCORES].struct_value.fields
        for address, score in decision.scores.items():
            scores[address].number_value = score


def _mutate(mutation: Any, changes: Mapping[str, str], remove: tuple[str, ...] = ()) -> None:
    add = mutation.set_headers.add
    for name, value in changes.items():
        option = add(append_action=_OVERWRITE)
        header = option.header
        header.key = name
        header.raw_value = value.encode("utf-8", "surrogateescape")
    if remove:
        mutation.remove_headers.extend(remove)


def _piece(reply: Piece) -> bytes:
    message = pb.ProcessingResponse()
    body = message.request_body if reply.side is Side.REQUEST else message.response_body
    streamed = body.response.body_mutation.streamed_response
    streamed.body = reply.data
    streamed.end_of_stream = reply.ends
    return message.SerializeToString()  # type: ignore[no-any-return]


def _pass_head(reply: PassHead) -> bytes:
    if not reply.set and not reply.remove:
        return _PASS_HEAD[reply.side]
    message = pb.ProcessingResponse()
    request = reply.side is Side.REQUEST
    head = message.request_headers if request else message.response_headers
    _mutate(head.response.header_mutation, reply.set, reply.remove)
    return message.SerializeToString()  # type: ignore[no-any-return]


def _pass_body(reply: PassBody) -> bytes:
    return _PASS_BODY[reply.side]


def _pass_trailers(reply: PassTrailers) -> bytes:
    if reply.decision is None:
        return _PASS_TRAILERS[reply.side]
    message = pb.ProcessingResponse(request_trailers=pb.TrailersResponse())
    _metadata(message, reply.decision)
    return message.SerializeToString()  # type: ignore[no-any-return]


def _answer(reply: Answer) -> bytes:
    message = pb.ProcessingResponse()
    response = message.immediate_response
    response.status.code = reply.status
    response.body = reply.body
    response.details = REFUSED
    _mutate(response.headers, reply.headers)
    return message.SerializeToString()  # type: ignore[no-any-return]


def _reporting(reply: Reporting) -> bytes:
    message = pb.ProcessingResponse()
    for namespace, values in reply.metadata.items():
        fields = message.dynamic_metadata.fields[namespace].struct_value.fields
        for name, value in values.items():
            fields[name].number_value = value
    # Serialised messages one after the other are their merger.
    return encode(reply.reply) + message.SerializeToString()  # type: ignore[no-any-return]


def _named(reply: Named) -> bytes:
    name = reply.name.encode()
    return encode(reply.reply) + _before_name(len(name)) + name


@lru_cache(maxsize=8)  # all names are as long
def _before_name(length: int) -> bytes:
    """A message that tells a name of ``length`` bytes, without it; made anew it costs 3 us."""
    message = pb.ProcessingResponse()
    fields = message.dynamic_metadata.fields[OWN_NAMESPACE].struct_value.fields
    fields[EXCHANGE].string_value = "x" * length
    return message.SerializeToString()[:-length]  # type: ignore[no-any-return]


_ENCODERS: Mapping[type, Any] = {
    Named: _named,
    ForwardHead: _forward_head,
    ForwardWhole: _forward_whole,
    ForwardAtOnce: _forward_at_once,
    Piece: _piece,
    PassHead: _pass_head,
    PassBody: _pass_body,
    PassTrailers: _pass_trailers,
    Answer: _answer,
    Reporting: _reporting,
}


def _both(request: Any, response: Any) -> dict[Side, bytes]:
    return {
        Side.REQUEST: request.SerializeToString(),
        Side.RESPONSE: response.SerializeToString(),
    }


_HEAD, _BODY, _TRAILERS = pb.HeadersResponse(), pb.BodyResponse(), pb.TrailersResponse()
_PASS_HEAD = _both(
    pb.ProcessingResponse(request_headers=_HEAD), pb.ProcessingResponse(response_headers=_HEAD)
)
_PASS_BODY = _both(
    pb.ProcessingResponse(request_body=_BODY), pb.ProcessingResponse(response_body=_BODY)
)
_PASS_TRAILERS = _both(
    pb.ProcessingResponse(request_trailers=_TRAILERS),
    pb.ProcessingResponse(response_trailers=_TRAILERS),
)
