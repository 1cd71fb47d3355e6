"""What a client is told when its request is refused."""

from __future__ import annotations

import msgspec
import pytest

from epp.errors import (
    BadRequest,
    EppError,
    Internal,
    NoEndpoints,
    NoKvCache,
    Saturated,
    TooLarge,
)
from epp.extproc.answers import answer


def test_an_error_is_an_openai_error_object() -> None:
    reply = answer(BadRequest("the body is not JSON"))
    assert reply.status == 400
    assert reply.headers == {"content-type": "application/json"}
    assert msgspec.json.decode(reply.body) == {
        "error": {
            "message": "the body is not JSON",
            "type": "BadRequestError",
            "param": None,
            "code": 400,
        }
    }


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Saturated("full"), "rejected-saturated"),
        (NoEndpoints("none"), "rejected-no-endpoints"),
    ],
)
def test_a_dropped_request_is_told_why_and_when_to_come_back(error: EppError, reason: str) -> None:
    headers = answer(error).headers
    assert headers["x-llm-d-request-dropped-reason"] == reason
    assert headers["retry-after"] == "1"


@pytest.mark.parametrize(
    ("error", "body"),
    [
        (BadRequest("x"), b"inference error: BadRequest - x"),
        (NoKvCache("x"), b"inference error: PreconditionFailed - x"),
        (TooLarge("x"), b"inference error: RequestEntityTooLarge - x"),
        (Saturated("x"), b"inference error: ResourceExhausted - x"),
        (NoEndpoints("x"), b"inference error: ServiceUnavailable - x"),
        (Internal("x"), b"inference error: Internal - x"),
    ],
)
def test_the_text_form(error: EppError, body: bytes) -> None:
    reply = answer(error, "text")
    assert reply.body == body
    assert reply.headers["content-type"] == "text/plain"


def test_bytes_that_are_not_utf_8_do_not_break_an_answer() -> None:
    reply = answer(BadRequest("no such model: " + b"\xff".decode("utf-8", "surrogateescape")))
    assert msgspec.json.decode(reply.body)["error"]["message"] == "no such model: ?"
