"""What a client may say in a request's head, what it may not, and what the backend gets to see."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from epp.headers import CONTROL, DESTINATION, MODEL_REWRITE, REQUEST_ID
from tests.support import http1, http2
from tests.support.backend import Seen, body, wanted
from tests.support.process import eventually
from tests.support.stack import Stack

pytestmark = pytest.mark.e2e

CHAT = "/v1/chat/completions"
LIMIT = 100_000
COMPLETED = 'epp_ended_requests_total{outcome="completed"}'
EVIL = "127.0.0.1:1"  #: nobody listens there


def seen(answer: http1.Answer) -> Seen:
    assert answer.status == 200, answer
    return msgspec.json.decode(answer.body, type=Seen)


def values(request: Seen, name: str) -> list[str]:
    return [value for each, value in request.headers if each == name]


@pytest.mark.parametrize("name", sorted(CONTROL))
def test_a_clients_control_header_never_reaches_the_backend(stack: Stack, name: str) -> None:
    for method, data in (("POST", b'{"model":"m","messages":[]}'), ("GET", b"")):
        for spelling in (name, name.title()):
            headers = {**wanted(kind="seen"), spelling: EVIL}
            request = seen(asyncio.run(http1.request(stack.port, method, CHAT, headers, data)))
            expected = 1 if name == DESTINATION else 0
            found = values(request, name)
            assert len(found) == expected
            assert set(found) <= set(stack.addresses)


def test_a_client_cannot_choose_the_destination(stack: Stack) -> None:
    asked = [number for number in range(3) for _ in range(10)]

    async def run() -> list[str]:
        async with http1.Connection(stack.port) as connection:
            answers = [
                await connection.ask("GET", "/v1/models", {DESTINATION: stack.addresses[number]})
                for number in asked
            ]
            return [answer.headers["x-backend"] for answer in answers]

    assert asyncio.run(run()) != [f"backend-{number}" for number in asked]


def test_an_upgrade_cannot_choose_the_destination_either(stack: Stack) -> None:
    headers = {"connection": "Upgrade", "upgrade": "websocket", DESTINATION: EVIL}

    async def run() -> http1.Answer:
        async with asyncio.timeout(20), http1.Connection(stack.port) as connection:
            await connection.send_head("GET", "/v1/realtime", headers)
            return await connection.read_head()

    assert asyncio.run(run()).status == 101


@pytest.mark.parametrize("given", ["", "a-client/chose:this-id"])
def test_a_request_keeps_one_id_from_the_client_to_the_backend(stack: Stack, given: str) -> None:
    headers = {**wanted(kind="seen"), **({REQUEST_ID: given} if given else {})}
    request = seen(asyncio.run(http1.request(stack.port, "POST", CHAT, headers, b"{}")))
    (found,) = values(request, REQUEST_ID)
    assert found == given if given else len(found) >= 32


def test_an_id_that_is_not_utf8_hides_nobodys_end(stack: Stack) -> None:
    def told() -> tuple[float, int]:
        return stack.metrics()[COMPLETED], stack.state()["reaped"]

    async def ask(own: bytes) -> int:
        async with asyncio.timeout(20), http1.Connection(stack.port) as connection:
            head = f"POST {CHAT} HTTP/1.1\r\nhost: test\r\ncontent-length: 2\r\n".encode()
            await connection.send(head + b"%b: %b\r\n\r\n{}" % (REQUEST_ID.encode(), own))
            return (await connection.read()).status

    async def run() -> list[int]:
        return await asyncio.gather(*map(ask, (b"one", b"a\xff\xe2\x82z", b"another")))

    completed, reaped = told()
    assert asyncio.run(run()) == [200, 200, 200]
    stack.wait_idle()
    assert told() == (completed + 3, reaped)


def test_ordinary_headers_reach_both_sides_untouched(stack: Stack) -> None:
    headers = {
        **wanted(kind="seen", headers={"set-cookie": "a=b; Path=/", "x-answered": "yes, twice"}),
        "authorization": "Bearer abc",
        "x-empty": "",
        "accept-encoding": "gzip, br",
        "cookie": "a=b; c=d",
    }
    answer = asyncio.run(http1.request(stack.port, "POST", CHAT, headers, b"{}"))
    request = seen(answer)
    for name, value in headers.items():
        assert values(request, name) == [value]
    assert answer.headers["set-cookie"] == "a=b; Path=/"
    assert answer.headers["x-answered"] == "yes, twice"


@pytest.mark.parametrize("model", ["n", "a-much-longer-name-of-a-model/" + "x" * 3000])
@pytest.mark.parametrize("client", [http1, http2], ids=["http1", "http2"])
def test_a_rewritten_model_leaves_the_bodys_framing_right(
    stack: Stack, client: object, model: str
) -> None:
    rest = '",\n "messages": [{"role":"user","content":"ünï"}], "x": 1.0e2}'
    headers = {**wanted(kind="seen"), MODEL_REWRITE[0]: model}
    sent = ('{ "model" : "some-model' + rest).encode()
    request = seen(asyncio.run(client.request(stack.port, "POST", CHAT, headers, sent)))  # type: ignore[attr-defined]
    assert request.body == ('{ "model" : "' + model + rest).encode()
    assert values(request, "content-length") in ([], [str(len(request.body))])


# --- more than the picker takes -----------------------------------------------------------


@pytest.fixture(scope="module", params=["lean", "stock"])
def narrow(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    """A gateway whose picker takes bodies of at most `LIMIT` bytes."""
    folder = tmp_path_factory.mktemp(f"narrow-{request.param}")
    with Stack(folder, mode=request.param, serve=(f"--max-body-bytes={LIMIT}",)) as stack:
        yield stack
        stack.wait_idle()


@pytest.mark.parametrize("client", [http1, http2], ids=["http1", "http2"])
def test_a_body_beyond_the_limit_is_answered_413(narrow: Stack, client: object) -> None:
    before = narrow.counts(0).requests + narrow.counts(1).requests
    for size, status in ((LIMIT, 200), (LIMIT + 1, 413), (3_000_000, 413), (LIMIT, 200)):
        asked = client.request(narrow.port, "POST", CHAT, {}, b" " * size)  # type: ignore[attr-defined]
        assert asyncio.run(asked).status == status
    narrow.wait_idle()
    assert narrow.counts(0).requests + narrow.counts(1).requests == before + 2


def test_a_chunked_body_beyond_the_limit_is_answered_413(narrow: Stack) -> None:
    async def run() -> http1.Answer:
        async with asyncio.timeout(20), http1.Connection(narrow.port) as connection:
            await connection.send_head("POST", CHAT, {"transfer-encoding": "chunked"})
            await connection.send_chunk(body(LIMIT // 2, 1))
            await connection.send_chunk(body(LIMIT // 2, 2))
            await connection.send_chunk(b"1")
            return await connection.read()

    answer = asyncio.run(run())
    assert answer.status == 413
    assert answer.headers["content-type"] == "application/json"
    assert str(LIMIT) in msgspec.json.decode(answer.body)["error"]["message"]
    narrow.wait_idle()


def test_an_announced_length_beyond_the_limit_is_refused_before_a_byte_of_it(narrow: Stack) -> None:
    async def run() -> http1.Answer:
        async with asyncio.timeout(20), http1.Connection(narrow.port) as connection:
            await connection.send_head("POST", CHAT, {"content-length": "1000000000000"})
            return await connection.read()

    assert asyncio.run(run()).status == 413
    narrow.wait_idle()


# --- ways to run a gateway ------------------------------------------------------------------


def test_a_gateway_without_a_picker_removes_control_headers_too(tmp_path: Path) -> None:
    with Stack(tmp_path, mode="direct") as stack:
        headers = {**wanted(kind="seen"), **dict.fromkeys(CONTROL, EVIL)}
        request = seen(asyncio.run(http1.request(stack.port, "POST", CHAT, headers, b"{}")))
        assert CONTROL.isdisjoint(name for name, _ in request.headers)


@pytest.mark.parametrize("mode", ["lean", "stock"])
def test_the_picker_may_be_asked_over_tls(tmp_path: Path, mode: str) -> None:
    with Stack(tmp_path, mode=mode, tls=True) as stack:  # type: ignore[arg-type]
        data = body(2_000_000, 1)
        answer = asyncio.run(http1.request(stack.port, "POST", CHAT, wanted(kind="echo"), data))
        assert (answer.status, answer.body) == (200, data)
        stack.wait_idle()
        if mode == "lean":
            eventually(lambda: stack.state()["access_logs"], what="an access log over TLS")


@pytest.mark.parametrize("mode", ["lean", "stock"])
def test_a_listed_endpoint_is_chosen_by_the_picker(tmp_path: Path, mode: str) -> None:
    routing = {"routing": "override-host", "fail_open": True}
    with Stack(tmp_path, mode=mode, backends=3, gateway=routing) as stack:  # type: ignore[arg-type]
        for number in range(20):
            prompt = b'{"model":"m","prompt":"%d"}' % number
            asked = http1.request(stack.port, "POST", CHAT, wanted(kind="seen"), prompt)
            answer = asyncio.run(asked)
            (chosen,) = values(seen(answer), DESTINATION)
            assert answer.headers["x-backend"] == f"backend-{stack.addresses.index(chosen)}"
        stack.wait_idle()
