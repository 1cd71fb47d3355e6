"""Clients that keep their connections and ask again and again, until told to stop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

from tests.support import http1, http2
from tests.support.backend import body, wanted
from tests.support.crowd import CHAT, Result

LIMIT_SECONDS = 30.0
SEEN = wanted(kind="seen")


class Load:
    """What the requests of a `steady` load have come to so far."""

    def __init__(self) -> None:
        self.results: list[Result] = []
        self.stopping = False

    def since(self, number: int) -> list[Result]:
        return self.results[number:]


@contextlib.asynccontextmanager
async def steady(
    port: int, headers: Mapping[str, str], *, clients: int = 16, size: int = 0
) -> AsyncIterator[Load]:
    """Ask all the time, half over HTTP/2; leaving the block waits for the last answers."""
    load = Load()
    async with asyncio.TaskGroup() as group:
        for number in range(clients):
            client = http2 if number % 2 else http1
            group.create_task(_client(client, port, headers, load=load, size=size))
        try:
            yield load
        finally:
            load.stopping = True


async def _client(
    client: Any, port: int, headers: Mapping[str, str], *, load: Load, size: int
) -> None:
    while not load.stopping:
        with contextlib.suppress(OSError, EOFError):
            async with asyncio.timeout(LIMIT_SECONDS), client.Connection(port) as connection:
                await _asks(connection, headers, load=load, size=size)


async def _asks(connection: Any, headers: Mapping[str, str], *, load: Load, size: int) -> None:
    while not load.stopping:
        try:
            answer = await connection.ask("POST", CHAT, headers, b'{"model":"m","prompt":"a"}')
        except (OSError, EOFError):
            load.results.append(Result(0, intact=False))
            raise
        intact = answer.status == 200 and answer.body == body(size, 0)
        load.results.append(Result(answer.status, intact, answer.headers.get("x-backend", "")))
        if answer.headers.get("connection") == "close":
            return


async def keep_alive(port: int, client: Any, *, connections: int, each: int) -> list[http1.Answer]:
    """``each`` requests on each of ``connections``, as the servers saw them."""

    async def one(number: int) -> list[http1.Answer]:
        answers = []
        async with client.Connection(port) as connection:
            for turn in range(each):
                prompt = b'{"model":"m","prompt":"%d %d"}' % (number, turn)
                answers.append(await connection.ask("POST", CHAT, SEEN, prompt))
        return answers

    async with asyncio.timeout(3 * LIMIT_SECONDS):
        found = await asyncio.gather(*(one(number) for number in range(connections)))
    return [answer for answers in found for answer in answers]
