"""What the model server gets, once a gateway has done what the picker answered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from envoy.service.ext_proc.v3 import external_processor_pb2 as pb

from tests.support import ext_proc as gw


def headers_sent(head: pb.ProcessingRequest, answers: Sequence[Any]) -> dict[str, str]:
    """The request's headers, after the first answer's changes; in full duplex, without length."""
    assert answers[0].WhichOneof("response") == "request_headers"
    sent = {each.key: each.raw_value.decode() for each in head.request_headers.headers.headers}
    sent.pop("content-length", None)
    sent.update(gw.set_headers(answers[0]))
    for name in gw.removed(answers[0]):
        sent.pop(name, None)
    return sent


def body_sent(answers: Sequence[Any], side: str = "request") -> bytes:
    """The body in the answers' pieces; fails unless exactly the last one ends it."""
    found = gw.pieces(answers, side)
    assert [piece.end_of_stream for piece in found] == [False] * (len(found) - 1) + [True]
    return b"".join(piece.body for piece in found)


def refusal(answers: Sequence[Any]) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of the only answer, which answers the client at once."""
    (answer,) = answers
    immediate = answer.immediate_response
    headers = {
        each.header.key: each.header.raw_value.decode() for each in immediate.headers.set_headers
    }
    return immediate.status.code, headers, immediate.body
