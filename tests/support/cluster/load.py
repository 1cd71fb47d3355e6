"""Clients that ask without a pause, and what became of each request."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator

import msgspec

from epp.sim.server import NAME_HEADER
from tests.support import http1

COMPLETIONS = "/v1/completions"
JSON = {"content-type": "application/json"}
BROKEN = (OSError, EOFError, TimeoutError, ValueError)
END = b"data: [DONE]"


class Sent(msgspec.Struct, frozen=True):
    """One request; status 0: no whole answer came."""

    began: float  #: the loop's time
    ended: float
    status: int
    engine: str = ""
    streamed: bool = False


async def complete(
    port: int, *, model: str = "sim", tokens: int = 5, stream: bool = False, prompt: str = "hello"
) -> http1.Answer:
    """Ask for a completion."""
    asked = {"model": model, "prompt": prompt, "max_tokens": tokens, "stream": stream}
    return await http1.request(port, "POST", COMPLETIONS, JSON, msgspec.json.encode(asked))


async def sent(port: int, number: int) -> Sent:
    """Send request ``number``: every second one streams, every twentieth for a second or two."""
    clock = asyncio.get_running_loop().time
    began, stream = clock(), number % 2 == 1
    tokens = 200 if number % 20 == 1 else 8
    try:
        answer = await complete(port, tokens=tokens, stream=stream, prompt=f"{number} words")
    except BROKEN:
        return Sent(began, clock(), 0, streamed=stream)
    whole = not stream or (END in answer.body and b'"abort"' not in answer.body)
    status = answer.status if whole or answer.status != 200 else 0
    return Sent(began, clock(), status, answer.headers.get(NAME_HEADER, ""), stream)


class Load:
    """What the clients have seen so far."""

    def __init__(self) -> None:
        self.all: list[Sent] = []

    @property
    def failed(self) -> list[Sent]:
        return [each for each in self.all if each.status != 200]

    def engines(self, since: float = 0.0) -> Counter[str]:
        """How many requests, begun since then, each engine answered."""
        return Counter(each.engine for each in self.all if each.began >= since)


@contextlib.asynccontextmanager
async def load(port: int, clients: int = 8, pause: float = 0.02) -> AsyncIterator[Load]:
    """Ask at ``port`` while the block runs; all requests have ended when it has."""
    made, over = Load(), asyncio.Event()
    numbers = iter(range(10**9))

    async def client() -> None:
        while not over.is_set():
            made.all.append(await sent(port, next(numbers)))
            await asyncio.sleep(pause)

    async with asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(client())
        try:
            yield made
        finally:
            over.set()
