"""A real Envoy and the picker before real vLLM, and what comes of requests through them."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tests.support import http1
from tests.support.kv_stack import CHAT, EngineStack
from tests.support.process import eventually
from tests.support.vllm.servers import BLOCK, Server

_numbers = itertools.count()


class VllmStack(EngineStack):
    """See `Stack`; its backends are servers that run already, and may be those of another."""

    trust_seconds = 20.0

    def __init__(self, folder: Path, servers: Sequence[Server], **more: Any) -> None:
        self.servers = servers
        folder.mkdir(parents=True, exist_ok=True)
        super().__init__(folder, tokens={"vllm": {"timeout": "10s"}}, backends=0, **more)

    @property
    def addresses(self) -> list[str]:
        return [server.address for server in self.servers]

    @property
    def engine_count(self) -> int:
        return len(self.servers)


class Told(msgspec.Struct, frozen=True):
    """What came of one request."""

    picked: str  #: address
    prompt: int  #: tokens, as all
    cached: int  #: as the engine says
    predicted: int
    said: str

    @property
    def foreseen(self) -> int:
        """Tokens that an engine finds which holds what was predicted: never a prompt's last one."""
        whole = self.predicted // BLOCK * BLOCK
        return min(whole, (self.prompt - 1) // BLOCK * BLOCK)


def ask(
    stack: VllmStack, messages: Sequence[Mapping[str, str]], *,
    headers: Mapping[str, str] | None = None, **fields: Any,
) -> Told:  # fmt: skip
    """Send a chat through Envoy; return what came of it."""
    name = f"v{next(_numbers)}"
    body = {
        "model": "tiny", "messages": messages, "max_tokens": 16, "temperature": 0,
        "ignore_eos": True,
    } | fields  # fmt: skip
    sent = http1.request(
        stack.port, "POST", CHAT,
        {"content-type": "application/json", "x-request-id": name, **(headers or {})},
        json.dumps(body).encode(),
    )  # fmt: skip
    answer = asyncio.run(sent)
    assert answer.status == 200, answer
    told = json.loads(answer.body)
    receipt = stack.page(f"/debug/explain?request_id={name}")
    assert receipt["tokens_from"] == "render", receipt
    usage = told["usage"]
    return Told(
        receipt["picked"], usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"],
        receipt["predicted_cached_tokens"] or 0, told["choices"][0]["message"]["content"],
    )  # fmt: skip


def user(text: str, *, words: int = 60) -> list[dict[str, str]]:
    """Return the messages of a conversation that begins with ``text``."""
    return [{"role": "user", "content": f"{text}: " + "be kind and answer the question " * words}]


def settled(stack: VllmStack) -> None:
    """Wait until nothing is expected only: all that was computed has been told."""
    seen: list[tuple[int, int]] = []

    def still() -> bool:
        knowledge = stack.knowledge()
        messages = sum(each["messages"] for each in knowledge["engines"])
        seen.append((knowledge["index"]["blocks"], messages))
        return len(seen) > 15 and len(set(seen[-15:])) == 1

    eventually(still, 10.0, "events to end")
