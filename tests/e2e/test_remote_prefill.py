"""Envoy, a picker that runs prefills itself, a prefill and a decode engine: all real processes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Self

import msgspec
import pytest

from epp.local.processes import epp
from epp.sim import tokenizer
from tests.support import http1
from tests.support.engine import expected
from tests.support.leaving import soon
from tests.support.process import Process, eventually
from tests.support.split_stack import CONFIG, PATH, SplitStack

pytestmark = pytest.mark.e2e

DONE = 'epp_prefill_legs_total{reason="done"}'
CLIENT = "plugins:\n- type: prefill-client\n"


class RemoteStack(SplitStack):
    """See `SplitStack`; backend 1 is the decode engine, without a sidecar."""

    def _backend(self, number: int, port: int) -> Process:
        if number == 0:
            return super()._backend(number, port)
        self.decode_port = port
        command = epp("engine", f"--port={port}", "--name=d", "--role=decode", "--speed=20")
        self.decode = Process("d", command, self.folder)
        return self.decode

    def __enter__(self) -> Self:
        file = self.folder / "picker.yaml"
        file.write_text(CONFIG.read_text().replace("plugins:\n", CLIENT, 1))
        super(SplitStack, self).__enter__()
        return self

    def _serve(self, more: Any) -> list[str]:
        return [
            f"--config-file={self.folder / 'picker.yaml'}" if "--config-file=" in each else each
            for each in super()._serve(more)
        ]


def test_a_picker_without_sidecars_splits_long_prompts_and_fails_safe(tmp_path: Path) -> None:
    with RemoteStack(tmp_path) as stack:
        short, long, longer = (tokenizer.text(size, seed=size) for size in (10, 512, 640))
        assert stack.ask(short, 4) == expected(short, 4)
        assert stack.fetched() == 0
        assert stack.ask(long, 8) == expected(long, 8)  # its body is longer than its client's
        assert stack.fetched() == 512
        # The gateway tells of an answer's end when the answer is over.
        eventually(lambda: stack.metrics().get(DONE) == 1, what="the count of that prefill")

        deadly = {"do_remote_prefill": True}
        assert stack.ask(short, 4, kv_transfer_params=deadly) == expected(short, 4)
        assert stack.decode.running

        _leave_amid_a_prefill(stack)
        stack.wait_idle()  # nothing is booked, no prefill is under way

        stack.backends[0].kill()
        assert stack.ask(longer, 8) == expected(longer, 8)
        assert stack.fetched() == 512
        stack.wait_idle()


def _leave_amid_a_prefill(stack: RemoteStack) -> None:
    """Field problem B137: a client that leaves then must not leave a prefill behind."""
    stack.backends[0].pause()
    ended = 'epp_ended_requests_total{outcome="abandoned"}'
    before = stack.metrics()[ended]
    prompt = tokenizer.text(768, seed=9)
    raw = msgspec.json.encode({"model": "sim", "prompt": prompt, "max_tokens": 4})
    head = {"content-type": "application/json"}

    async def leave() -> None:
        asking = asyncio.create_task(http1.request(stack.port, "POST", PATH, head, raw))
        await soon(lambda: stack.state()["streams"] > 0)()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)

    try:
        asyncio.run(leave())
        eventually(lambda: stack.metrics()[ended] == before + 1, what="the end of that request")
    finally:
        stack.backends[0].resume()
