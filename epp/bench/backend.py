"""A model server that costs little: it reads a request's JSON and sends a fixed answer.

``python -m epp.bench.backend --ports 3 --chunks 100``; prints its ports as JSON. Every port
also answers ``GET /metrics`` as an idle vLLM would. A streamed answer takes a second or so, however
many chunks it has: answers of 100 and of 1,000 chunks then come at one rate, as an engine's do
that sends several tokens at once (vLLM's ``--stream-interval``).
"""

from __future__ import annotations

import argparse
import asyncio
import json

import httptools
import msgspec
import uvloop

METRICS = b"""\
vllm:num_requests_running{engine="0",model_name="bench"} 0.0
vllm:num_requests_waiting{engine="0",model_name="bench"} 0.0
vllm:kv_cache_usage_perc{engine="0",model_name="bench"} 0.0
"""
TOKEN = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"bench",'
    b'"choices":[{"index":0,"delta":{"content":" word"},"finish_reason":null}]}\n\n'
)
UNARY = (
    b'{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"bench","choices":[{'
    b'"index":0,"message":{"role":"assistant","content":" word"},"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":900,"total_tokens":901,"completion_tokens":1}}'
)
STEP_SECONDS = 0.01  #: between two writes of a streamed answer: 100 tokens a second each
MOST_STEPS = 100  #: writes of an answer; of a longer one several chunks go at once


class Message(msgspec.Struct):
    """One message of a chat."""

    role: str
    content: str


class Chat(msgspec.Struct):
    """What a model server must read before it can answer."""

    model: str
    messages: list[Message]
    stream: bool = False


_chat = msgspec.json.Decoder(Chat).decode


class Connection(asyncio.Protocol):
    """One kept-alive connection; answers each whole request."""

    def __init__(self, chunks: int) -> None:
        self._chunks = chunks
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._body: list[bytes] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self._url = url

    def on_body(self, data: bytes) -> None:
        self._body.append(data)

    def on_message_complete(self) -> None:
        body, self._body = b"".join(self._body), []
        if self._url == b"/metrics":
            self._transport.write(_whole(METRICS, b"text/plain"))
        elif not _chat(body).stream:
            self._transport.write(_whole(UNARY, b"application/json"))
        else:
            task = asyncio.get_running_loop().create_task(self._stream())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _stream(self) -> None:
        write = self._transport.write
        write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        piece = b"%x\r\n%s\r\n" % (len(TOKEN), TOKEN)
        at_once = -(-self._chunks // MOST_STEPS)
        for sent in range(0, self._chunks, at_once):
            await asyncio.sleep(STEP_SECONDS)
            write(piece * min(at_once, self._chunks - sent))
        write(b"0\r\n\r\n")


def _whole(body: bytes, kind: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n"
    return head % (kind, len(body)) + body


async def main(ports: int, chunks: int) -> None:
    """Listen on ``ports`` free ports until killed."""
    loop = asyncio.get_running_loop()
    servers = [
        await loop.create_server(lambda: Connection(chunks), "127.0.0.1", 0) for _ in range(ports)
    ]
    print(json.dumps([s.sockets[0].getsockname()[1] for s in servers]), flush=True)  # noqa: T201
    await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--ports", type=int, default=3)
    parser.add_argument("--chunks", type=int, default=0)
    parsed = parser.parse_args()
    uvloop.run(main(parsed.ports, parsed.chunks))
