"""A real Envoy and the picker before real vLLM servers of which one only prefills."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from epp.local.processes import epp
from tests.support import http1
from tests.support.process import Process, eventually
from tests.support.stack import Stack
from tests.support.vllm.servers import Server

PATH = "/v1/completions"
LEASE_SECONDS = 3  #: of the prefill engine; the picker and the sidecar believe in less
LONG_SECONDS = 30.0
_EXTERNAL = "vllm:prompt_tokens_by_source_total"
_ASKED = "vllm:request_success_total"
_RUNNING = "vllm:num_requests_running"
_CONFIG = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:CLIENT
- type: approx-prefix-cache-producer
- type: prefix-cache-scorer
- type: queue-scorer
- type: prefill-filter
- type: decode-filter
- type: max-score-picker
- type: prefix-based-pd-decider
  parameters: {nonCachedTokens: 64}
- type: disagg-profile-handler
  parameters: {deciders: {prefill: prefix-based-pd-decider}}
schedulingProfiles:
- name: prefill
  plugins: [{pluginRef: prefill-filter}, {pluginRef: max-score-picker}]
- name: decode
  plugins:
  - pluginRef: decode-filter
  - {pluginRef: prefix-cache-scorer, weight: 2}
  - pluginRef: queue-scorer
  - pluginRef: max-score-picker
"""
_CLIENT = "\n- type: prefill-client\n  parameters: {timeout: 20s, lease: LEASE}"


class SplitVllm(Stack):
    """See `Stack`; its engines run already.

    Args:
        prefill: the engine that does.
        decodes: those that decode.
        lease: for which the picker, which sends prefills itself, believes in caches; "": each
            decode engine has a sidecar that does.
    """

    def __init__(
        self, folder: Path, prefill: Server, decodes: Sequence[Server], *, lease: str
    ) -> None:
        self.prefill = prefill
        self.decodes = decodes
        folder.mkdir()
        client = _CLIENT.replace("LEASE", lease) if lease else ""
        (folder / "split.yaml").write_text(_CONFIG.replace("CLIENT", client))
        serve = (f"--config-file={folder / 'split.yaml'}", "--receipts=1000")
        super().__init__(folder, backends=0 if lease else len(decodes), serve=serve)

    @property
    def addresses(self) -> list[str]:
        return [self.prefill.address, *self._decoding]

    @property
    def _decoding(self) -> list[str]:
        return super().addresses or [server.address for server in self.decodes]

    def _backend(self, number: int, port: int) -> Process:
        command = epp(
            "sidecar", "--host=127.0.0.1", f"--port={port}", "--secure-proxy=false",
            f"--model-server-port={self.decodes[number].port}", "--enable-ssrf-protection",
            f"--allowed-prefillers={self.prefill.address}", "--metrics-port=0",
            f"--kv-lease={LEASE_SECONDS - 1}s",
        )  # fmt: skip
        return Process(f"sidecar-{number}", command, self.folder)

    def _serve(self, more: Sequence[str]) -> list[str]:
        roles = ["prefill", *("decode" for _ in self.decodes)]
        listed = [
            {
                "name": f"{role}-{number}", "address": "127.0.0.1",
                "port": int(address.rpartition(":")[2]), "labels": {"llm-d.ai/role": role},
            }
            for number, (role, address) in enumerate(zip(roles, self.addresses, strict=True))
        ]  # fmt: skip
        file = self.folder / "endpoints.yaml"
        file.write_text(json.dumps({"endpoints": listed}))
        command = super()._serve((f"--endpoints-file={file}", *more))
        return [each for each in command if not each.startswith("--endpoints=")]

    def ask(self, prompt: str, **fields: Any) -> str:
        """Return the text of an answer through the gateway, which is right in status."""
        body = _body(prompt, **fields)
        head = {"content-type": "application/json"}
        got = asyncio.run(http1.request(self.port, "POST", PATH, head, json.dumps(body).encode()))
        assert got.status == 200, got
        return _streamed(got.body) if body.get("stream") else _text(got.body)

    def running_at_first_token(self, prompt: str, **fields: Any) -> float:
        """Ask for a stream; return what decode engines run when its first token comes, and leave."""
        body = json.dumps(_body(prompt, stream=True, **fields)).encode()
        return asyncio.run(self._at_first_token(body))

    async def _at_first_token(self, body: bytes) -> float:
        head = {"content-type": "application/json", "content-length": str(len(body))}
        async with http1.Connection(self.port) as connection, asyncio.timeout(LONG_SECONDS):
            await connection.send_head("POST", PATH, head)
            await connection.send(body)
            answer = await connection.read_head()
            assert answer.status == 200, answer
            said = b""
            async for piece in connection.pieces(answer):
                said += piece
                if _streamed(said[: said.rfind(b"\n\n") + 1]):
                    break
            assert b"[DONE]" not in said
            return sum(server.total(_RUNNING) for server in self.decodes)

    def ask_while(self, prompt: str, meanwhile: Callable[[], None], **fields: Any) -> str:
        """Ask, do something as soon as that is sent, and return the text of the answer."""
        with ThreadPoolExecutor(1) as pool:
            answer: Future[str] = pool.submit(self.ask, prompt, **fields)
            try:
                meanwhile()
            finally:
                text = answer.result(2 * LONG_SECONDS)
        return text

    def local(self, prompt: str) -> str:
        """Return what an engine says of a prompt that it computes itself."""
        status, answer = self.prefill.call("POST", PATH, _body(prompt))
        assert status == 200, answer
        return _text(answer)

    @property
    def fetched(self) -> float:
        """Prompt tokens that decode engines had from the prefill engine."""
        source = "external_kv_transfer"
        return sum(server.total(_EXTERNAL, source=source) for server in self.decodes)

    @property
    def prefilled(self) -> float:
        """Requests that the prefill engine has done."""
        return self.prefill.total(_ASKED)

    def wait_prefilled(self, before: float) -> None:
        """Wait until the prefill engine has done one more."""
        eventually(lambda: self.prefilled > before, LONG_SECONDS, "the prefill")

    def legs(self, reason: str) -> float:
        """Prefills that the picker ran, by how they ended."""
        return self.metrics().get(f'epp_prefill_legs_total{{reason="{reason}"}}', 0.0)


def prompt_of(text: str) -> str:
    """Return a long prompt that begins with ``text``."""
    return f"{text}: " + "be kind and answer the question " * 30


def _body(prompt: str, **fields: Any) -> dict[str, Any]:
    asked = {"model": "tiny", "prompt": prompt, "max_tokens": 12, "temperature": 0}
    return asked | {"ignore_eos": True} | fields


def _text(answer: bytes) -> str:
    return str(json.loads(answer)["choices"][0]["text"])


def _streamed(answer: bytes) -> str:
    events = [line[6:] for line in answer.decode().split("\n") if line.startswith("data: {")]
    return "".join(json.loads(event)["choices"][0]["text"] for event in events)
