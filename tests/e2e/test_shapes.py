"""Requests and answers of every shape that HTTP has: methods, framings, trailers, upgrades."""

from __future__ import annotations

import asyncio
import time

import msgspec
import pytest

from tests.support import http1, http2
from tests.support.backend import Seen, body, wanted
from tests.support.process import eventually
from tests.support.stack import Stack

pytestmark = pytest.mark.e2e

CHAT = "/v1/chat/completions"
UPGRADE = {
    "connection": "Upgrade",
    "upgrade": "websocket",
    "sec-websocket-version": "13",
    "sec-websocket-key": "AAAAAAAAAAAAAAAAAAAAAA==",
}


def seen(answer: http1.Answer) -> Seen:
    assert answer.status == 200, answer
    return msgspec.json.decode(answer.body, type=Seen)


@pytest.mark.parametrize("client", [http1, http2], ids=["http1", "http2"])
@pytest.mark.parametrize("method", ["GET", "OPTIONS", "DELETE", "POST", "PUT", "PATCH"])
def test_a_request_without_a_body_reaches_the_backend(
    stack: Stack, client: object, method: str
) -> None:
    path = "/v1/models/a%2Fb?limit=1&x=%C3%BC"
    answer = asyncio.run(client.request(stack.port, method, path, wanted(kind="seen")))  # type: ignore[attr-defined]
    request = seen(answer)
    assert (request.method, request.path, request.body) == (method, path, b"")


@pytest.mark.parametrize("client", [http1, http2], ids=["http1", "http2"])
@pytest.mark.parametrize("method", ["POST", "DELETE", "GET"])
def test_a_body_of_length_nought_is_no_error(stack: Stack, client: object, method: str) -> None:
    headers = {**wanted(kind="seen"), "content-length": "0"}
    request = seen(asyncio.run(client.request(stack.port, method, CHAT, headers)))  # type: ignore[attr-defined]
    assert (request.method, request.body) == (method, b"")


def test_an_empty_chunked_body_is_no_error(stack: Stack) -> None:
    request = seen(asyncio.run(http1.request(stack.port, "POST", CHAT, wanted(kind="seen"), [])))
    assert (request.method, request.body) == ("POST", b"")


@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_a_body_goes_with_any_method(stack: Stack, method: str) -> None:
    sent = b'{"model":"m","prompt":"a"}'
    request = seen(asyncio.run(http1.request(stack.port, method, CHAT, wanted(kind="seen"), sent)))
    assert (request.method, request.body) == (method, sent)


@pytest.mark.parametrize("client", [http1, http2], ids=["http1", "http2"])
def test_head_is_answered_without_a_body(stack: Stack, client: object) -> None:
    headers = wanted(kind="bytes", size=1234, headers={"x-mine": "1"})
    answer = asyncio.run(client.request(stack.port, "HEAD", "/v1/models", headers))  # type: ignore[attr-defined]
    assert (answer.status, answer.body, answer.headers["x-mine"]) == (200, b"", "1")


@pytest.mark.parametrize("client", [http1, http2], ids=["http1", "http2"])
@pytest.mark.parametrize("status", [204, 304])
def test_an_answer_that_may_have_no_body_has_none(
    stack: Stack, client: object, status: int
) -> None:
    asked = client.request(stack.port, "POST", CHAT, wanted(status=status), b"{}")  # type: ignore[attr-defined]
    answer = asyncio.run(asked)
    assert (answer.status, answer.body) == (status, b"")


@pytest.mark.parametrize("status", [400, 404, 429, 500, 503])
def test_the_backends_own_errors_reach_the_client_untouched(stack: Stack, status: int) -> None:
    headers = wanted(kind="bytes", size=500, status=status, headers={"retry-after": "7"})
    answer = asyncio.run(http1.request(stack.port, "POST", CHAT, headers, b'{"model":"m"}'))
    assert (answer.status, answer.body) == (status, body(500, 0))
    assert answer.headers["retry-after"] == "7"


def test_an_answer_without_a_length_or_chunks_ends_with_its_connection(stack: Stack) -> None:
    headers = wanted(kind="bytes", size=100_000, until_close=True)
    answer = asyncio.run(http1.request(stack.port, "POST", CHAT, headers, b"{}"))
    assert (answer.status, answer.body) == (200, body(100_000, 0))


def test_a_client_that_expects_100_continue_is_told_to_go_on(stack: Stack) -> None:
    sent = b'{"model":"m","messages":[]}'
    expect = {**wanted(kind="echo"), "expect": "100-continue", "content-length": str(len(sent))}

    async def run() -> tuple[int, http1.Answer]:
        async with asyncio.timeout(20), http1.Connection(stack.port) as connection:
            await connection.send_head("POST", CHAT, expect)
            interim = await connection.read_head()
            await connection.send(sent)
            return interim.status, await connection.read()

    interim, answer = asyncio.run(run())
    assert (interim, answer.status, answer.body) == (100, 200, sent)


@pytest.mark.parametrize("version", ["http1", "http2"])
@pytest.mark.parametrize("data", [b"", b'{"model":"m","prompt":"a"}', body(100_000, 1)], ids=len)
def test_request_trailers_reach_the_backend_after_the_body(
    stack: Stack, data: bytes, version: str
) -> None:
    trailers = {"x-checksum": "abc", "x-other": "1"}
    place, headers = (stack.port, "POST", CHAT), wanted(kind="seen")
    if version == "http1":
        chunks = [data] if data else []
        answer = asyncio.run(http1.request(*place, headers, chunks, trailers=trailers))
    else:
        answer = asyncio.run(http2.request(*place, headers, data, trailers=trailers))
    request = seen(answer)
    assert (request.body, dict(request.trailers)) == (data, trailers)


def test_an_exchange_like_grpc_keeps_its_trailers(stack: Stack) -> None:
    message = b"\0\0\0\x27\x10" + body(10_000, 3)
    headers = {
        **wanted(
            kind="echo",
            chunked=True,
            headers={"content-type": "application/grpc"},
            trailers={"grpc-status": "0", "grpc-message": "fine"},
        ),
        "content-type": "application/grpc",
        "te": "trailers",
    }
    asked = http2.request(stack.port, "POST", "/package.Service/Method", headers, message)
    answer = asyncio.run(asked)
    assert (answer.status, answer.body) == (200, message)
    assert answer.trailers == {"grpc-status": "0", "grpc-message": "fine"}


def test_answer_trailers_without_a_body_arrive(stack: Stack) -> None:
    headers = wanted(kind="bytes", size=0, chunked=True, trailers={"grpc-status": "5"})
    answer = asyncio.run(http2.request(stack.port, "POST", CHAT, headers, b"{}"))
    assert (answer.body, answer.trailers) == (b"", {"grpc-status": "5"})


def test_each_piece_of_a_slow_answer_arrives_before_the_next_is_made(stack: Stack) -> None:
    headers = wanted(
        kind="bytes", size=50, pieces=5, wait=0.1, chunked=True,
        headers={"content-type": "text/event-stream"},
    )  # fmt: skip

    async def run() -> tuple[list[bytes], list[float]]:
        pieces, times = [], []
        async with asyncio.timeout(20), http1.Connection(stack.port) as connection:
            framing = {"content-length": "2"}
            await connection.send_head("POST", CHAT, {**headers, **framing})
            await connection.send(b"{}")
            answer = await connection.read_head()
            async for piece in connection.pieces(answer):
                pieces.append(piece)
                times.append(time.monotonic())
        return pieces, times

    pieces, times = asyncio.run(run())
    assert b"".join(pieces) == body(50, 0)
    assert len(pieces) == 5
    assert times[-1] - times[0] > 0.2  # 0.4 if nothing ever waits for anything


@pytest.mark.parametrize("length", [{}, {"content-length": "0"}])
def test_an_upgraded_connection_streams_both_ways(stack: Stack, length: dict[str, str]) -> None:
    async def run() -> http1.Answer:
        async with asyncio.timeout(20), http1.Connection(stack.port) as connection:
            await connection.send_head("GET", "/v1/realtime?model=m", {**UPGRADE, **length})
            answer = await connection.read_head()
            for size in (1, 5, 70_000, 3):
                await connection.send(body(size, size))
                assert await connection.reader.readexactly(size) == body(size, size)
            await asyncio.to_thread(held, stack)
        return answer

    answer = asyncio.run(run())
    assert answer.status == 101
    assert answer.headers["x-backend"].startswith("backend-")


def held(stack: Stack) -> None:
    """The upgraded connection counts as one request in flight while it lasts."""

    def booked() -> int:
        return sum(endpoint["in_flight_requests"] for endpoint in stack.pool())

    assert eventually(booked, what="a booking") == 1


def test_requests_of_one_connection_are_decided_one_by_one(stack: Stack) -> None:
    headers = wanted(wait=0.3)  # long enough to be in flight together

    async def run() -> list[str]:
        async with http2.Connection(stack.port) as connection:
            prompts = (b'{"model":"m","prompt":"%d"}' % number for number in range(9))
            answers = await asyncio.gather(
                *(connection.ask("POST", CHAT, headers, prompt) for prompt in prompts)
            )
            return [answer.headers["x-backend"] for answer in answers]

    assert set(asyncio.run(run())) == {"backend-0", "backend-1", "backend-2"}
