"""A whole gateway with simulated engines that publish KV events, and conversations with it."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from epp.local.fleet import free_port
from epp.local.processes import epp
from tests.support import http1
from tests.support.process import Process, eventually
from tests.support.stack import Stack

CHAT = "/v1/chat/completions"
BLOCK = 16
CONFIG = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: token-producer
  parameters: TOKENS
- type: precise-prefix-cache-producer
- type: prefix-cache-scorer
- type: queue-scorer
- type: max-score-picker
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: prefix-cache-scorer, weight: 3}
  - {pluginRef: queue-scorer, weight: 1}
  - {pluginRef: max-score-picker}
"""


class EngineStack(Stack):
    """See `Stack`; its backends are ``epp engine``.

    Args:
        tokens: parameters of the ``token-producer``.
        engine: more flags of the engines.
    """

    trust_seconds = 10.0  #: until all are trusted

    def __init__(
        self, folder: Path, *, tokens: Mapping[str, Any], engine: Sequence[str] = (), **more: Any
    ) -> None:
        self._engine = engine
        config = folder / "precise.yaml"
        config.write_text(CONFIG.replace("TOKENS", json.dumps(tokens)))
        serve = (f"--config-file={config}", "--receipts=1000")
        super().__init__(folder, serve=serve, **more)

    def _backend(self, number: int, port: int) -> Process:
        command = epp(
            "engine", f"--port={port}", f"--name=engine-{number}", "--speed=100",
            f"--kv-events-port={free_port()}", f"--kv-events-replay-port={free_port()}",
            *self._engine,
        )  # fmt: skip
        return Process(f"engine-{number}", command, self.folder)

    def page(self, path: str) -> Any:
        """A page of JSON of the picker."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.ports.admin}{path}") as answer:
            return json.loads(answer.read())

    def knowledge(self) -> dict[str, Any]:
        """What the producer of exact knowledge shows of itself."""
        plugins = self.page("/debug/plugins/state")
        return dict(plugins["precise-prefix-cache-producer"])

    @property
    def engine_count(self) -> int:
        return len(self.backends)

    def wait_exact(self) -> None:
        """Wait until all engines' events are trusted."""

        def exact() -> bool:
            engines = self.knowledge()["engines"]
            trusted = {each["endpoint"] for each in engines if each["trust"] == "exact"}
            return len(trusted) == self.engine_count

        eventually(exact, self.trust_seconds, "trust in all engines")


class Answer(msgspec.Struct, frozen=True):
    """What came of one turn."""

    engine: str
    prompt: int  #: tokens, as all
    cached: int
    predicted: int
    receipt: Mapping[str, Any]

    @property
    def foreseen(self) -> int:
        """Tokens that an engine finds which holds what was predicted: never a prompt's last one."""
        return min(self.predicted, (self.prompt - 1) // BLOCK * BLOCK)


class Conversation:
    """With one system prompt, growing by each answer."""

    def __init__(self, stack: EngineStack, number: int) -> None:
        self.blocks = 0  #: that an engine has computed of it
        self._stack = stack
        self._number = number
        self._messages = [{"role": "system", "content": f"{number:04} " + "be kind " * 60}]

    def turn(self) -> Answer:
        """Say something, and hear the answer."""
        request_id = f"c{self._number}-{len(self._messages)}"
        self._messages.append({"role": "user", "content": f"question {request_id} " * 9})
        body = {"model": "sim", "messages": self._messages, "max_tokens": 40}
        headers = {"content-type": "application/json", "x-request-id": request_id}
        sent = http1.request(self._stack.port, "POST", CHAT, headers, json.dumps(body).encode())
        answer = asyncio.run(sent)
        assert answer.status == 200, answer
        told = json.loads(answer.body)
        self._messages.append(
            {"role": "assistant", "content": told["choices"][0]["message"]["content"]}
        )
        usage = told["usage"]
        # The last token that was made is not computed.
        self.blocks = (usage["prompt_tokens"] + usage["completion_tokens"] - 1) // BLOCK
        receipt = self._stack.page(f"/debug/explain?request_id={request_id}")
        return Answer(
            answer.headers["x-engine-name"], usage["prompt_tokens"],
            usage["prompt_tokens_details"]["cached_tokens"], receipt["predicted_cached_tokens"],
            receipt,
        )  # fmt: skip


def wait_told(stack: EngineStack, conversations: Sequence[Conversation]) -> None:
    """Wait until the picker knows all that engines computed of these, and no more."""
    wanted = sum(each.blocks for each in conversations)
    eventually(lambda: stack.knowledge()["index"]["blocks"] == wanted, 10.0, f"{wanted} blocks")
