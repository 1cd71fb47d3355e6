"""Bodies of any size and framing go through Envoy and the picker byte for byte."""

from __future__ import annotations

import asyncio
import random

import msgspec
import pytest

from tests.support import http1, http2
from tests.support.backend import Seen, body, wanted
from tests.support.stack import Stack

pytestmark = pytest.mark.e2e

CHAT = "/v1/chat/completions"
UNREAD = "/v1/files"  #: no inference API: the picker forwards it unread
REQUEST_SIZES = (1, 16_384, 65_536, 1_048_577, 4_194_304, 20_000_000)


def chat(size: int) -> bytes:
    """A chat request of some ``size`` bytes, with escapes and letters of 2 to 4 bytes."""
    rng = random.Random(size)
    words = "".join(rng.choices(["word ", "ünï ", "漢字 ", "🎉 ", '\\" ', "\n"], k=size // 6))
    content = msgspec.json.encode({"role": "user", "content": words}).decode()
    return f'{{ "model": "m",\n "messages": [{content}], "x": 1.0e2}}'.encode()


def test_three_thousand_answers_of_any_size_arrive_byte_identical(stack: Stack) -> None:
    rng = random.Random(7)
    sizes = [int(400_000 ** rng.random()) for _ in range(1500)]
    sizes += [rng.randint(1, 400_000) for _ in range(1500)]
    rng.shuffle(sizes)
    jobs = iter(enumerate(sizes))
    wrong: list[str] = []

    async def client() -> None:
        async with http1.Connection(stack.port) as connection:
            for seed, size in jobs:
                headers = wanted(
                    kind="bytes", size=size, seed=seed, chunked=seed % 2 == 0, pieces=1 + seed % 7
                )
                answer = await connection.ask("POST", CHAT, headers, b'{"model":"m","messages":[]}')
                if answer.status != 200 or answer.body != body(size, seed):
                    wrong.append(f"{seed}: {answer.status}, {len(answer.body)} of {size} bytes")

    async def run() -> None:
        async with asyncio.timeout(100), asyncio.TaskGroup() as group:
            for _ in range(24):
                group.create_task(client())

    reaped = stack.state()["reaped"]
    asyncio.run(run())
    assert next(jobs, None) is None
    assert wrong == []
    stack.wait_idle()
    assert stack.state()["reaped"] == reaped  # each end was told, none was guessed


@pytest.mark.parametrize("client", [http1, http2], ids=["http1", "http2"])
@pytest.mark.parametrize("size", REQUEST_SIZES)
def test_a_request_body_is_echoed_byte_identical(stack: Stack, client: object, size: int) -> None:
    sent = body(size, size)
    asked = client.request(stack.port, "POST", UNREAD, wanted(kind="echo"), sent)  # type: ignore[attr-defined]
    answer = asyncio.run(asked)
    assert answer.status == 200
    assert answer.body == sent


@pytest.mark.parametrize("client", [http1, http2], ids=["http1", "http2"])
@pytest.mark.parametrize("size", [1000, 200_000, 20_000_000])
def test_a_prompt_reaches_the_backend_byte_identical(
    stack: Stack, client: object, size: int
) -> None:
    sent = chat(size)
    headers = {**wanted(kind="echo"), "content-type": "application/json"}
    answer = asyncio.run(client.request(stack.port, "POST", CHAT, headers, sent))  # type: ignore[attr-defined]
    assert answer.status == 200
    assert answer.body == sent


def test_a_chunked_request_reaches_the_backend_whole(stack: Stack) -> None:
    chunks = [body(size, size) for size in (1, 100_000, 7, 65_536, 1, 300_000)]
    answer = asyncio.run(http1.request(stack.port, "POST", UNREAD, wanted(kind="echo"), chunks))
    assert answer.body == b"".join(chunks)


def test_a_body_that_comes_in_drops_reaches_the_backend_whole(stack: Stack) -> None:
    sent = chat(3000)

    async def run() -> http1.Answer:
        async with asyncio.timeout(30), http1.Connection(stack.port) as connection:
            headers = {**wanted(kind="seen"), "content-length": str(len(sent))}
            await connection.send_head("POST", CHAT, headers)
            for start in range(0, len(sent), 100):
                await connection.send(sent[start : start + 100])
                await asyncio.sleep(0.001)
            return await connection.read()

    assert msgspec.json.decode(asyncio.run(run()).body, type=Seen).body == sent


def test_streams_of_one_http2_connection_do_not_mix(stack: Stack) -> None:
    sizes = [1 + 17_000 * number for number in range(32)]

    async def run() -> list[http1.Answer]:
        async with http2.Connection(stack.port) as connection:
            asks = [
                connection.ask("POST", UNREAD, wanted(kind="echo"), body(size, size))
                for size in sizes
            ]
            return await asyncio.gather(*asks)

    answers = asyncio.run(run())
    assert [answer.status for answer in answers] == [200] * len(sizes)
    assert all(answer.body == body(size, size) for answer, size in zip(answers, sizes, strict=True))
