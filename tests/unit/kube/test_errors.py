"""What is read from an API server's refusals."""

from __future__ import annotations

import msgspec
import pytest

from epp.kube.errors import error_of, error_of_event

FORBIDDEN = (
    b'{"kind":"Status","message":"pods is forbidden: User x","reason":"Forbidden","code":403}'
)


def test_a_refusal_says_what_was_asked_and_what_the_server_said() -> None:
    error = error_of("GET /api/v1/pods", 403, FORBIDDEN, {})
    assert str(error) == "GET /api/v1/pods: 403 pods is forbidden: User x"
    assert (error.status, error.reason, error.retry_after) == (403, "Forbidden", 0.0)


@pytest.mark.parametrize(
    "body", [b"", b"<html>bad gateway</html>", b"[1]", b"\xff", b'{"code":"x"}']
)
def test_a_page_that_is_no_status_harms_nothing(body: bytes) -> None:
    error = error_of("GET /x", 502, body, {})
    assert str(error) == "GET /x: 502 no message"
    assert error_of("GET /x", 410, body, {}).reason == "Expired"


def test_a_long_message_is_cut() -> None:
    body = msgspec.json.encode({"message": "x" * 10_000})
    assert len(str(error_of("GET /x", 500, body, {}))) < 600


@pytest.mark.parametrize(
    ("header", "details", "expected"),
    [
        ("7", {}, 7.0),
        ("", {"retryAfterSeconds": 3}, 3.0),
        ("7", {"retryAfterSeconds": 3}, 7.0),
        ("Wed, 21 Oct 2026 07:28:00 GMT", {}, 0.0),
        ("-1", {}, 0.0),
        ("", {"retryAfterSeconds": -4}, 0.0),
    ],
)
def test_the_pause_a_server_asks_for(header: str, details: dict[str, int], expected: float) -> None:
    body = msgspec.json.encode({"details": details})
    assert error_of("GET /x", 429, body, {"Retry-After": header}).retry_after == expected


def test_an_error_event_has_the_code_of_its_status() -> None:
    event = msgspec.Raw(b'{"code":410,"reason":"Expired","message":"too old resource version"}')
    error = error_of_event("watch", event)
    assert (error.status, error.reason) == (410, "Expired")
    assert error_of_event("watch", msgspec.Raw(b"{}")).status == 500
