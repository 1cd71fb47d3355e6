"""Many clients at once, half of them over HTTP/2, and what came of each."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import msgspec

from tests.support import http1, http2
from tests.support.backend import body, wanted
from tests.support.process import eventually
from tests.support.stack import Stack

CHAT = "/v1/chat/completions"
SLOW_BYTES = 20_000
SLOW = wanted(kind="bytes", size=SLOW_BYTES, pieces=20, wait=0.07, chunked=True)
QUICK_BYTES = 100
QUICK = wanted(kind="bytes", size=QUICK_BYTES)
BROKEN = (OSError, EOFError)


class Result(msgspec.Struct, frozen=True):
    """What a client saw; status 0 if the connection or stream ended within the answer."""

    status: int
    intact: bool
    backend: str = ""
    seconds: float = 0.0


async def one(port: int, headers: Mapping[str, str], *, number: int, size: int = 0) -> Result:
    """Send request ``number``, of HTTP/2 if odd; expect an answer of `body` ``(size, 0)``."""
    client = http2 if number % 2 else http1
    began = asyncio.get_running_loop().time()
    try:
        prompt = b'{"model":"m","prompt":"%d"}' % number
        answer = await client.request(port, "POST", CHAT, headers, prompt)
    except BROKEN:
        return Result(0, intact=False, seconds=asyncio.get_running_loop().time() - began)
    return Result(
        answer.status,
        intact=answer.status == 200 and answer.body == body(size, 0),
        backend=answer.headers.get("x-backend", ""),
        seconds=asyncio.get_running_loop().time() - began,
    )


async def all_of(
    port: int, headers: Mapping[str, str], *, clients: int, size: int = 0
) -> list[Result]:
    """What ``clients`` requests sent together see."""
    return await asyncio.gather(
        *(one(port, headers, number=number, size=size) for number in range(clients))
    )


async def quick(stack: Stack, clients: int = 20) -> list[Result]:
    """What ``clients`` short requests sent together see."""
    return await all_of(stack.port, QUICK, clients=clients, size=QUICK_BYTES)


async def while_answering(stack: Stack, act: Callable[[], object]) -> list[Result]:
    """Do ``act`` while 20 answers of 1.4 s are on their way; what became of those."""
    task = asyncio.create_task(all_of(stack.port, SLOW, clients=20, size=SLOW_BYTES))
    servers = range(len(stack.backends))

    def answering() -> bool:
        return sum(stack.counts(number).running for number in servers) == 20

    await asyncio.to_thread(eventually, answering)
    await asyncio.sleep(0.3)  # answers' heads and first pieces are with the clients
    await asyncio.to_thread(act)
    return await task


def summary(results: Sequence[Result]) -> Counter[tuple[int, bool]]:
    """How many had which status, whole or not."""
    return Counter((result.status, result.intact) for result in results)
