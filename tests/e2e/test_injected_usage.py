"""``--inject-usage`` with simulated engines: answers as they come from them, tokens known anyway.

One picker behind two Envoys, stock and lean. What a client sees is compared with what the engine
itself answers to the same request.
"""

from __future__ import annotations

import asyncio
import json
import re
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from epp.gateway.options import GatewayOptions
from epp.local import fleet
from tests.support import http1

pytestmark = pytest.mark.e2e

ASKED = {"stream_options": {"include_usage": True}}
#: Path, more fields, and whether the picker knows the tokens.
REQUESTS: dict[str, tuple[str, dict[str, Any], bool]] = {
    "chat": ("/v1/chat/completions", {"stream": True}, True),
    "completions": ("/v1/completions", {"stream": True, "stream_options": None}, True),
    "asked": ("/v1/chat/completions", {"stream": True, **ASKED}, True),
    "several": ("/v1/chat/completions", {"stream": True, "n": 2}, False),
    "whole": ("/v1/completions", {}, True),
    "refused": ("/v1/completions", {"stream": True, "max_tokens": -1}, False),
}


class Running(msgspec.Struct):
    """Ports of all parts."""

    engine: int
    stock: int
    lean: int
    admin: int


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Running]:
    async with (
        fleet.engines(1, folder, "--models=sim", "--speed=20") as engines,
        fleet.picker(engines, folder, "--inject-usage") as picker,
        fleet.gateway(_options("stock", picker), folder) as stock,
        fleet.gateway(_options("lean", picker), folder) as lean,
    ):
        engine = int(engines[0].rpartition(":")[2])
        yield Running(engine, stock.port, lean.port, picker.ports.admin)


def _options(mode: Any, picker: fleet.Picker) -> GatewayOptions:
    return GatewayOptions(mode=mode, picker_port=picker.ports.grpc, picker_tls=False)


async def ask(port: int, kind: str, way: str) -> http1.Answer:
    path, fields, _ = REQUESTS[kind]
    text = "one two three " * 40
    prompt = {"messages": [{"role": "user", "content": text}], "prompt": text}
    body = json.dumps({"model": "sim", "max_tokens": 20, "ignore_eos": True, **prompt, **fields})
    headers = {"content-type": "application/json", "x-request-id": f"{way}-{kind}"}
    answer = await http1.request(port, "POST", path, headers, body.encode())
    # The same request, but not in the same second, nor by the same id.
    answer.body = re.sub(rb'"created":\d+', b'"created":0', answer.body)
    answer.body = answer.body.replace(f"-{way}-{kind}".encode(), b"")
    return answer


def ending(admin: int, kind: str) -> dict[str, Any]:
    """What the picker knows of how the request of that kind ended whose answer it saw."""
    address = f"http://127.0.0.1:{admin}/debug/explain?request_id=stock-{kind}"
    with urllib.request.urlopen(address) as page:
        return dict(json.load(page)["ended"])


def tokens(ended: dict[str, Any]) -> tuple[Any, ...]:
    """Tokens of the prompt, those of them that were cached, and those of the answer."""
    return ended["prompt_tokens"], ended["cached_tokens"], ended["completion_tokens"]


def test_answers_are_the_engine_s_and_the_picker_knows_their_tokens(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as ports:
            ways = {"own": ports.engine, "lean": ports.lean, "stock": ports.stock}
            await ask(ports.engine, "chat", "first")
            await ask(ports.engine, "completions", "first")
            for kind, (_, _, knows) in REQUESTS.items():
                own, lean, stock = [await ask(port, kind, way) for way, port in ways.items()]
                assert (lean.status, lean.body) == (own.status, own.body), kind
                assert (stock.status, stock.body) == (own.status, own.body), kind
                # An answer that passes the picker has ended there before its client has the end.
                ended = await asyncio.to_thread(ending, ports.admin, kind)
                prompt, cached, output = tokens(ended)
                if knows:
                    assert output == 20, (kind, ended)
                    assert prompt > cached > prompt / 2, (kind, ended)
                else:
                    assert (prompt, cached, output) == (None, None, None), (kind, ended)

    asyncio.run(main())
    log = (tmp_path / "picker.log").read_text()
    assert log.count("--inject-usage") == 1, "of the lean gateway it says once that it cannot"
