"""Gateways that show bodies in other ways than our bootstraps do: whole, in pieces, or not at all.

A real Envoy whose ``processing_mode`` is changed after rendering. A request's model is rewritten
where the picker has the whole body; nothing else about any byte changes.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import http1
from tests.support.backend import body, wanted
from tests.support.stack import Stack

pytestmark = pytest.mark.e2e

COUNT = 60
PARALLEL = 12
MODES = [  # of the request's body and the answer's
    ("BUFFERED", "BUFFERED"),
    ("STREAMED", "STREAMED"),
    ("BUFFERED_PARTIAL", "BUFFERED_PARTIAL"),
    ("NONE", "FULL_DUPLEX_STREAMED"),
]


class Shown(Stack):
    """A stack whose Envoy shows bodies in the modes given."""

    def __init__(self, folder: Path, request: str, answer: str) -> None:
        self._modes = {"requestBodyMode": request, "responseBodyMode": answer}
        super().__init__(folder, mode="stock")

    def _envoy(self) -> list[str]:
        command = super()._envoy()
        bootstrap = self.folder / "envoy.yaml"
        rendered = yaml.safe_load(bootstrap.read_text())
        (found,) = processing_modes(rendered)
        found |= {"requestHeaderMode": "SEND", "responseHeaderMode": "SEND", **self._modes}
        bootstrap.write_text(yaml.safe_dump(rendered))
        return command


def processing_modes(part: Any) -> Iterator[dict[str, str]]:
    """Every processing mode in a bootstrap."""
    if isinstance(part, dict):
        if "processingMode" in part:
            yield part["processingMode"]
        part = list(part.values())
    if isinstance(part, list):
        for each in part:
            yield from processing_modes(each)


async def ask(stack: Stack, number: int, *, rewrites: bool) -> None:
    """Send one request of its own size; every third is echoed, the rest get bytes."""
    chance = random.Random(number)
    size = int(400_000 ** chance.random())
    sent = json.dumps({"model": "m", "prompt": "x" * chance.choice([5, 9000, 300_000])}).encode()
    headers = wanted(kind="bytes", size=size, seed=number, chunked=bool(number % 2))
    due = body(size, number)
    if number % 3 == 0:
        headers = wanted(kind="echo")
        due = sent.replace(b'"m"', b'"a-longer-name"') if rewrites else sent
    headers |= {"content-type": "application/json", "x-llm-d-model-name-rewrite": "a-longer-name"}
    answer = await http1.request(stack.port, "POST", "/v1/completions", headers, sent)
    assert (answer.status, answer.body) == (200, due), number


@pytest.mark.parametrize(("request_mode", "answer_mode"), MODES)
def test_bodies_arrive_whatever_the_mode(
    request_mode: str, answer_mode: str, tmp_path: Path
) -> None:
    async def main(stack: Stack) -> None:
        places = asyncio.Semaphore(PARALLEL)

        async def one(number: int) -> None:
            async with places:
                await ask(stack, number, rewrites=request_mode == "BUFFERED")

        async with asyncio.TaskGroup() as group:
            for number in range(COUNT):
                group.create_task(one(number))

    with Shown(tmp_path, request_mode, answer_mode) as stack:
        asyncio.run(main(stack))
        stack.wait_idle()
        spurious = stack.envoy_stats("ext_proc.spurious_msgs_received")
        assert list(spurious.values()) == [0]
