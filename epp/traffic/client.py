"""Sends a workload to a gateway and measures each answer as its client sees it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

import aiohttp
import msgspec

from epp.traffic.figures import Sample
from epp.traffic.workload import Session

ENGINE_HEADER = "x-engine-name"  #: set by simulated engines
TIMEOUT_SECONDS = 60.0

OnSample = Callable[[Sample], None]


class Delta(msgspec.Struct):
    content: str | None = None


class Choice(msgspec.Struct):
    delta: Delta = msgspec.field(default_factory=Delta)
    text: str | None = None  #: of the completions API


class Details(msgspec.Struct):
    cached_tokens: int | None = None


class Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: Details | None = None


class Chunk(msgspec.Struct):
    """The parts we read of one chunk of an answer, of the chat or the completions API."""

    choices: list[Choice] = []
    usage: Usage | None = None


async def send(
    url: str, model: str, conversations: Sequence[Session], output_tokens: int, on_sample: OnSample
) -> None:
    """Play all conversations against ``url``; each finished request is told to ``on_sample``."""
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
    connector = aiohttp.TCPConnector(limit=0)
    began = time.monotonic()
    async with (
        aiohttp.ClientSession(timeout=timeout, connector=connector) as http,
        asyncio.TaskGroup() as group,
    ):
        for conversation in conversations:
            group.create_task(
                _converse(http, url, model, conversation, output_tokens, began, on_sample),
                name=conversation.name,
            )


async def _converse(
    http: aiohttp.ClientSession,
    url: str,
    model: str,
    conversation: Session,
    output_tokens: int,
    began: float,
    on_sample: OnSample,
) -> None:
    await asyncio.sleep(max(0.0, began + conversation.starts_at - time.monotonic()))
    messages = [{"role": "system", "content": conversation.system}]
    for turn, question in enumerate(conversation.questions):
        if turn:
            await asyncio.sleep(conversation.pauses[turn - 1])
        messages.append({"role": "user", "content": question})
        body = {
            "model": model,
            "messages": messages,
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": output_tokens,
        }
        sample, answer = await _ask(http, url, body)
        on_sample(sample)
        messages.append({"role": "assistant", "content": answer})


async def _ask(http: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> tuple[Sample, str]:
    began = time.monotonic()
    first: float | None = None
    answer: list[str] = []
    usage: Usage | None = None
    engine = ""
    try:
        async with http.post(f"{url}/v1/chat/completions", json=body) as response:
            engine = response.headers.get(ENGINE_HEADER, "")
            if response.status != 200:
                return Sample(engine=engine, error=f"HTTP {response.status}"), ""
            async for line in response.content:
                if not line.startswith(b"data: {"):
                    continue
                chunk = msgspec.json.decode(line[6:], type=Chunk)
                usage = chunk.usage or usage
                for choice in chunk.choices:
                    if choice.delta.content:
                        first = first or time.monotonic()
                        answer.append(choice.delta.content)
    except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError) as error:
        return Sample(engine=engine, error=type(error).__name__), "".join(answer)
    if first is None or usage is None:
        return Sample(engine=engine, error="the stream was cut"), "".join(answer)
    cached = usage.prompt_tokens_details.cached_tokens if usage.prompt_tokens_details else None
    sample = Sample(
        engine=engine,
        ttft=first - began,
        duration=time.monotonic() - began,
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=cached or 0,
    )
    return sample, "".join(answer)
