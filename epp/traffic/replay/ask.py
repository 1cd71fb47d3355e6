"""Sends one request of a replay and measures its answer as the client sees it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Literal

import aiohttp
import msgspec

from epp.traffic.client import Chunk
from epp.traffic.replay.prompts import Prompt

Api = Literal["completions", "chat"]
PATHS: Mapping[Api, str] = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """Where requests go."""

    url: str
    model: str
    api: Api = "completions"
    headers: Mapping[str, str] = {}
    timeout: float = 600.0  #: seconds for a whole answer


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """An answer. Times in seconds since the request was sent."""

    ttft: float | None = None  #: until the first token; None if none came
    duration: float = 0.0
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int | None = None
    error: str = ""  #: "" if it was whole

    @property
    def tpot(self) -> float | None:
        """Seconds per token after the first: (duration - TTFT) / (tokens - 1)."""
        if self.ttft is None or self.output_tokens < 2:
            return None
        return (self.duration - self.ttft) / (self.output_tokens - 1)


def body_of(target: Target, prompt: Prompt, output_tokens: int) -> dict[str, Any]:
    """Return the request that asks for exactly ``output_tokens``, where the engine can do so."""
    body: dict[str, Any] = {
        "model": target.model,
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": max(output_tokens, 1),
        "min_tokens": max(output_tokens, 1),
        "ignore_eos": True,
        "temperature": 0,
    }
    if target.api == "completions":
        return {**body, "prompt": prompt}
    return {**body, "messages": [{"role": "user", "content": prompt}]}


async def ask(http: aiohttp.ClientSession, target: Target, body: Mapping[str, Any]) -> Answer:
    """Send ``body``; what goes wrong is told in `Answer.error`."""
    began = time.monotonic()
    try:
        async with http.post(
            target.url.rstrip("/") + PATHS[target.api], json=body, headers=target.headers,
            timeout=aiohttp.ClientTimeout(total=target.timeout),
        ) as response:  # fmt: skip
            if response.status != 200:
                return Answer(duration=time.monotonic() - began, error=f"HTTP {response.status}")
            return await _read(response, began)
    except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError) as error:
        return Answer(duration=time.monotonic() - began, error=str(error) or type(error).__name__)


async def _read(response: aiohttp.ClientResponse, began: float) -> Answer:
    first: float | None = None
    usage = None
    async for line in response.content:
        if not line.startswith(b"data: {"):
            continue
        chunk = msgspec.json.decode(line[6:], type=Chunk)
        usage = chunk.usage or usage
        if first is None and any(each.delta.content or each.text for each in chunk.choices):
            first = time.monotonic() - began
    duration = time.monotonic() - began
    if first is None or usage is None:
        return Answer(ttft=first, duration=duration, error="the stream was cut")
    details = usage.prompt_tokens_details
    return Answer(
        ttft=first,
        duration=duration,
        prompt_tokens=usage.prompt_tokens,
        output_tokens=usage.completion_tokens,
        cached_tokens=details.cached_tokens if details else None,
    )
