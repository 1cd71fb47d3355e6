"""Whatever a prefill endpoint answers, byte by byte: it is used if it is right, else the request goes on."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from epp.model import Outcome
from tests.support.remote_prefill import BODY, Case, endpoint
from tests.support.sidecar import recording

TOLD = {
    "do_remote_prefill": True, "remote_engine_id": "e", "remote_host": "127.0.0.1",
    "remote_port": 5600, "remote_block_ids": [[1, 2]], "remote_request_id": "r",
}  # fmt: skip
GOOD = json.dumps({"kv_transfer_params": TOLD}).encode()


def answer(
    body: bytes = GOOD, *, head: bytes = b"", status: bytes = b"200 OK", length: bool = True
) -> bytes:
    if length:
        head += b"content-length: %d\r\n" % len(body)
    return b"HTTP/1.1 %b\r\ncontent-type: application/json\r\n%b\r\n%b" % (status, head, body)


class Server:
    """Answers every request with the same bytes, then closes the connection, or waits."""

    def __init__(self, data: bytes, *, waits: bool = False) -> None:
        self.data = data
        self.asked: list[bytes] = []  #: heads
        self.port = 0
        self._waits = waits
        self.tasks: list[asyncio.Task[None]] = []

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.tasks.append(asyncio.create_task(self._handle(reader, writer)))

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            self.asked.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(self.data)
            if self._waits:
                await reader.read()  # until the other side leaves
            else:
                await writer.drain()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


@contextlib.asynccontextmanager
async def serving(data: bytes, *, waits: bool = False) -> AsyncIterator[Server]:
    server = Server(data, waits=waits)
    listening = await asyncio.start_server(server.accept, "127.0.0.1", 0)
    async with listening:
        server.port = listening.sockets[0].getsockname()[1]
        yield server
        await asyncio.gather(*server.tasks)


async def reason_of(case: Case, **headers: str) -> str:
    """Route a request; why its prompt is computed where it is decoded, "" if it is not."""
    exchange = await case.route(**headers)
    assert exchange.leg is not None
    used = json.loads(exchange.request.body).get("kv_transfer_params")
    assert used == (TOLD if not exchange.leg.reason else None)
    if used is None:
        assert exchange.request.body == json.dumps(BODY).encode()
    exchange.end(Outcome.COMPLETED)
    assert case.idle
    return exchange.leg.reason


def asked(data: bytes, *, waits: bool = False, **headers: str) -> tuple[str, list[bytes]]:
    """What comes of one request, and the heads that the endpoint was sent."""

    async def main() -> tuple[str, list[bytes]]:
        async with serving(data, waits=waits) as server:
            known = [endpoint("d", 1, "decode"), endpoint("p0", server.port, "prefill")]
            case = Case(known, timeout="400ms" if waits else "20s")
            reason = await reason_of(case, **headers)
            await case.client.close()
            return reason, server.asked

    return asyncio.run(main())


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(answer(), id="as engines do"),
        pytest.param(answer(length=False), id="until the connection ends"),
        pytest.param(b"HTTP/1.1 100 Continue\r\n\r\n" + answer(), id="after another head"),
        pytest.param(b"HTTP/1.1 103 Hints\r\nlink: x\r\n\r\n" + answer(), id="after hints"),
    ],
)
def test_a_right_answer_is_used_however_it_comes(data: bytes) -> None:
    assert asked(data)[0] == ""


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        pytest.param(answer(status=b"201 Created"), "malformed", id="another good status"),
        pytest.param(b"HTTP/1.1 204 No Content\r\n\r\n", "malformed", id="nothing"),
        pytest.param(answer(status=b"101 Switching Protocols"), "malformed", id="an upgrade"),
        pytest.param(answer(GOOD[:-1], length=False), "malformed", id="cut off, without a length"),
        pytest.param(
            answer(gzip.compress(GOOD), head=b"content-encoding: gzip\r\n"),
            "malformed",
            id="compressed though nobody asked for it",
        ),
        pytest.param(answer(b" " * (9 << 20)), "malformed", id="too long"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nx: %b\r\n\r\n" % (b"a" * 99_999), "connection", id="head"
        ),
        pytest.param(b"SSH-2.0-OpenSSH\r\n", "connection", id="another protocol"),
        pytest.param(answer(status=b"418 Teapot"), "refused", id="a client's fault"),
        pytest.param(answer(status=b"429 Busy"), "failed", id="busy"),
        pytest.param(answer(status=b"599 Down"), "failed", id="its own fault"),
    ],
)
def test_any_other_answer_leaves_the_prompt_to_the_endpoint_that_decodes(
    data: bytes, reason: str
) -> None:
    assert asked(data)[0] == reason


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_an_answer_that_points_elsewhere_is_not_followed(status: int) -> None:
    async def main() -> None:
        async with recording() as elsewhere:
            head = b"location: http://127.0.0.1:%d/v1/completions\r\n" % elsewhere.port
            async with serving(answer(b"", head=head, status=b"%d x" % status)) as server:
                known = [endpoint("d", 1, "decode"), endpoint("p0", server.port, "prefill")]
                case = Case(known)
                assert await reason_of(case, authorization="Bearer key") == "malformed"
                await case.client.close()
            assert elsewhere.seen == []

    asyncio.run(main())


def test_an_answer_that_breaks_off_at_any_byte_is_not_used() -> None:
    whole = answer()
    cuts = [*range(0, len(whole), 7), *range(len(whole) - len(GOOD) - 4, len(whole), 11)]

    async def main() -> None:
        async with serving(b"") as server:
            known = [endpoint("d", 1, "decode"), endpoint("p0", server.port, "prefill")]
            case = Case(known)
            for cut in cuts:
                server.data = whole[:cut]
                assert await reason_of(case) == "connection", cut
                case.client._health.forget(known[1].id)
            server.data = whole
            assert await reason_of(case) == ""
            await case.client.close()

    asyncio.run(main())


@pytest.mark.parametrize("sent", [b"", answer()[:40], answer()[:-1]], ids=["", "a head", "most"])
def test_an_answer_that_does_not_end_in_time_is_given_up(sent: bytes) -> None:
    assert asked(sent, waits=True)[0] == "timeout"


@pytest.mark.parametrize(
    "path", ["/v1/completions?a=%2F&b=%7e+c", "/x%2fy/v1/completions", "//v1/completions"]
)
def test_the_prefill_is_asked_by_the_path_as_the_client_wrote_it(path: str) -> None:
    reason, heads = asked(answer(), **{":path": path})
    assert reason == ""
    assert heads[0].split(b" ")[1] == path.encode()


def test_a_path_that_would_be_read_as_a_host_is_asked_of_nobody() -> None:
    reason, heads = asked(answer(), **{":path": "@10.0.0.9:80/v1/completions"})
    assert (reason, heads) == ("path", [])


def test_of_the_clients_headers_only_some_go_to_the_prefill() -> None:
    told: dict[str, Any] = {
        "authorization": "Bearer key", "x-api-key": "k", "traceparent": "00-1", "cookie": "c",
        "x-prefiller-host-port": "10.9.9.9:1", "accept-encoding": "gzip", "expect": "100-continue",
    }  # fmt: skip
    _, (head,) = asked(answer(), **told)
    names = {line.partition(b":")[0].lower() for line in head.split(b"\r\n")[1:] if line}
    assert names >= {b"authorization", b"x-api-key", b"traceparent", b"x-request-id"}
    assert not names & {b"cookie", b"x-prefiller-host-port", b"expect"}
    assert b"gzip" not in head
