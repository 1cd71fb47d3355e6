"""Closed-loop load: N kept-alive connections, each sends its next request on the last answer.

``python -m epp.bench.load --port P --connections N --seconds S --prompt-tokens T``; prints what
it saw as JSON. With ``--rate R`` no more than R requests a second are sent, at even distances. Requests are prepared beforehand: 32 different prompts that share a beginning.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import time
from collections.abc import Iterator

import httptools
import msgspec
import uvloop

from epp.traffic.figures import percentile
from epp.traffic.workload import text

PROMPTS = 32
SHARED = 0.5  #: part of each prompt that all share


class Seen:
    """What all connections saw, and when the next request is due."""

    def __init__(self, rate: float = 0.0) -> None:
        self.latencies: list[float] = []
        self.errors = 0
        self._gap = 1 / rate if rate else 0.0
        self._due = 0.0

    def wait(self) -> float:
        """Seconds until the caller may send."""
        now = time.perf_counter()
        self._due = max(self._due + self._gap, now)
        return self._due - now


class Connection(asyncio.Protocol):
    """One connection in a closed loop until ``deadline``."""

    def __init__(self, requests: Iterator[bytes], deadline: float, seen: Seen) -> None:
        self._requests = requests
        self._deadline = deadline
        self._seen = seen
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]
        self._next()

    def _next(self) -> None:
        if wait := self._seen.wait():
            asyncio.get_running_loop().call_later(wait, self._send)
        else:
            self._send()

    def _send(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._began = time.perf_counter()
        self._transport.write(next(self._requests))

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        now = time.perf_counter()
        if self._parser.get_status_code() != 200:
            self._seen.errors += 1
        self._seen.latencies.append(now - self._began)
        if now < self._deadline:
            self._next()
        else:
            self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        if error is not None:
            self._seen.errors += 1
        if not self.done.done():
            self.done.set_result(None)


def requests(prompt_tokens: int, *, streamed: bool) -> list[bytes]:
    """HTTP/1.1 chat requests, ready to be written."""
    draw = random.Random(7)
    shared = text(draw, int(prompt_tokens * SHARED))
    made = []
    for _ in range(PROMPTS):
        own = text(draw, prompt_tokens - int(prompt_tokens * SHARED))
        body = msgspec.json.encode(
            {
                "model": "bench",
                "messages": [
                    {"role": "system", "content": shared},
                    {"role": "user", "content": own},
                ],
                "stream": streamed,
                "max_tokens": 100 if streamed else 1,
            }
        )
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\nuser-agent: load\r\n"
            f"accept: */*\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        made.append(head.encode() + body)
    return made


async def main(parsed: argparse.Namespace) -> None:
    """Run the load; print the figures."""
    prepared = requests(parsed.prompt_tokens, streamed=parsed.streamed)
    seen = Seen(parsed.rate)
    loop = asyncio.get_running_loop()
    began = time.perf_counter()
    waiting = []
    for i in range(parsed.connections):
        turn = itertools.cycle(prepared[i % PROMPTS :] + prepared[: i % PROMPTS])
        _, connection = await loop.create_connection(
            lambda turn=turn: Connection(turn, began + parsed.seconds, seen),  # type: ignore[misc]
            "127.0.0.1",
            parsed.port,
        )
        waiting.append(connection.done)
    async with asyncio.timeout(parsed.seconds + 30):
        await asyncio.gather(*waiting)
    took = time.perf_counter() - began
    milliseconds = [latency * 1000 for latency in seen.latencies]
    print(  # noqa: T201
        json.dumps(
            {
                "requests": len(seen.latencies),
                "errors": seen.errors,
                "rps": len(seen.latencies) / took,
                "p50_ms": percentile(milliseconds, 50),
                "p99_ms": percentile(milliseconds, 99),
            }
        ),
        flush=True,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--prompt-tokens", type=int, default=900)
    parser.add_argument("--rate", type=float, default=0.0, help="requests per second; 0: no limit")
    parser.add_argument("--streamed", action="store_true")
    uvloop.run(main(parser.parse_args()))
