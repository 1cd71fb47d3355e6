"""KV events for tests: tokens by name, engines' hashes worked out from them, captured messages."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from pathlib import Path

from epp.collect.parse.kv_events import parse
from epp.model import EndpointId
from epp.prefix.exact.events import Batch, Stored, Tier
from epp.prefix.exact.index import ExactIndex
from epp.prefix.exact.keys import Keys, Prompt

DATA = Path(__file__).parents[1] / "data" / "kv_events"
A, B = EndpointId("a"), EndpointId("b")


def packed(tokens: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(tokens)}I", *tokens)


def prompt(first: int, count: int, *, model: str = "", salt: str = "") -> Prompt:
    """Return the prompt of ``count`` tokens from the number ``first`` on."""
    return Prompt(packed(range(first, first + count)), model, salt=salt)


def stored(
    first: int, blocks: int, *, parent: int | None = None, size: int = 16, tier: Tier = Tier.GPU,
    **more: object,
) -> Stored:  # fmt: skip
    """Return an event of blocks of ``size`` tokens counting from ``first`` on.

    A block's hash in the engine is its first token, plus one.
    """
    starts = range(first, first + blocks * size, size)
    tokens = packed(range(first, first + blocks * size))
    return Stored(tuple(each + 1 for each in starts), parent, tokens, size, tier, **more)


def index(*endpoints: EndpointId, block_tokens: int = 16, most_bytes: int = 4_000_000):
    made = ExactIndex(Keys((b"secret",)), block_tokens=block_tokens, most_bytes=most_bytes)
    for endpoint in endpoints or (A,):
        made.join(endpoint)
    return made


def held(of: ExactIndex, asked: Prompt) -> dict[str, int]:
    """Return leading blocks by endpoint."""
    return dict(of.look_up(asked).blocks)


def captured(name: str) -> list[Batch]:
    """Return the messages of one capture of vLLM 0.32, in order."""
    lines = (DATA / f"{name}.jsonl").read_text().splitlines()
    return [parse(bytes.fromhex(json.loads(line)["payload"])) for line in lines]
