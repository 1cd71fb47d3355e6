"""The index of what engines told, alone: taking in messages, and look-ups among 1,000 endpoints."""

from __future__ import annotations

import os
import random
import struct
import time
from collections.abc import Callable, Iterator

import msgspec

from epp.collect.parse.kv_events import parse
from epp.local.processes import resident_bytes
from epp.model import EndpointId
from epp.prefix.blocks import block_hashes
from epp.prefix.exact.events import Stored
from epp.prefix.exact.index import ExactIndex
from epp.prefix.exact.keys import Keys, Prompt
from epp.traffic.figures import percentile

ENDPOINTS = 1000
INGEST_ENDPOINTS = 100
BLOCK = 16  #: tokens
PROMPT_BLOCKS = 64  #: of a stored prompt, told in one message
ANSWER_BLOCKS = 8  #: that follow it, told in one message each
VOCABULARY = 150_000
TENANTS = 4
TAIL_TOKENS = 1024  #: of a prompt looked up that nobody holds
LEAST = 200  #: look-ups
REFERENCES = 10_000_000
FILL_ENDPOINTS = 10  #: that hold the same blocks


class Cost(msgspec.Struct, frozen=True):
    """What one piece of work cost, many times over."""

    cpu_ms: float  #: of one piece
    rate: float  #: pieces per second of one core
    count: int
    p50_ms: float | None = None
    p99_ms: float | None = None


def ingest(seconds: float) -> Cost:
    """Time messages from bytes to index. A piece is one block stored or removed.

    Engines store prompts and answers, and remove as many blocks as they store, one to an event.
    """
    draw = random.Random(5)
    index = ExactIndex(Keys((b"bench",)))
    for i in range(INGEST_ENDPOINTS):
        index.join(EndpointId(f"pod-{i}"))
    spent, blocks, number = 0.0, 0, 0
    while spent < seconds:
        requests = [list(request(draw)) for _ in range(50)]
        began = time.process_time()
        for told in requests:
            endpoint_id = EndpointId(f"pod-{number % INGEST_ENDPOINTS}")
            for payload, count in told:
                index.apply(endpoint_id, parse(payload).events)
                blocks += count
            number += 1
        spent += time.process_time() - began
    return Cost(spent / blocks * 1000, blocks / spent, blocks)


def look_up_8k(seconds: float) -> Cost:
    """Time look-ups of 8k tokens, half of them a tenant's prefix that all 1,000 endpoints hold."""
    draw = random.Random(6)
    index = _joined()
    shared = [_tokens(draw, 4096) for _ in range(TENANTS)]
    for i, prefix in enumerate(shared):
        for endpoint in range(ENDPOINTS):
            # Some hold less of it than others.
            held = len(prefix) // (4 * BLOCK) >> (endpoint % 16 == i)
            _store(index, endpoint, prefix[: held * 4 * BLOCK])
    sessions = [(_prompt(draw, shared), draw.randrange(ENDPOINTS)) for _ in range(100)]
    for tokens, endpoint in sessions:
        _store(index, endpoint, tokens)

    def prompt() -> Prompt:
        tokens = draw.choice(sessions)[0]
        return Prompt(tokens[: (8192 - TAIL_TOKENS) * 4] + _tokens(draw, TAIL_TOKENS), "")

    return _timed(index, prompt, seconds)


def look_up_128k(seconds: float) -> Cost:
    """Time look-ups of 128k tokens of conversations that a few of 1,000 endpoints hold parts of."""
    draw = random.Random(7)
    index = _joined()
    conversations = [_tokens(draw, 131_072 - TAIL_TOKENS) for _ in range(4)]
    for tokens in conversations:
        for part in (1, 2, 3, 4):
            _store(index, draw.randrange(ENDPOINTS), tokens[: len(tokens) * part // 4])

    def prompt() -> Prompt:
        return Prompt(draw.choice(conversations) + _tokens(draw, TAIL_TOKENS), "")

    return _timed(index, prompt, seconds)


def memory(references: int) -> float:
    """Return what `REFERENCES` take, in MB, judged by so many: half of them held by ten endpoints.

    A reference is a block that one endpoint holds.
    """
    index = _joined()
    before = resident_bytes(os.getpid())
    tokens = random.Random(8).randbytes(PROMPT_BLOCKS * BLOCK * 4)
    for number in range(references // PROMPT_BLOCKS // 2):
        hashes = tuple(range(number << 8, (number << 8) + PROMPT_BLOCKS))
        event = Stored(hashes, None, number.to_bytes(4, "little") + tokens[4:], BLOCK)
        index.apply(EndpointId(f"pod-{number % ENDPOINTS}"), [event])
        shared = Stored(
            hashes, None, (number // FILL_ENDPOINTS).to_bytes(4, "big") + tokens[4:], BLOCK
        )
        index.apply(EndpointId(f"pod-{number % FILL_ENDPOINTS + ENDPOINTS // 2}"), [shared])
    return (resident_bytes(os.getpid()) - before) / references * REFERENCES / 1e6


def _timed(index: ExactIndex, prompt: Callable[[], Prompt], seconds: float) -> Cost:
    took: list[float] = []
    for _ in range(20):
        index.look_up(prompt())
    spent, cpu = 0.0, 0.0
    while spent < seconds or len(took) < LEAST:
        asked = prompt()
        cpu_before, began = time.process_time(), time.perf_counter()
        index.look_up(asked)
        took.append((time.perf_counter() - began) * 1000)
        cpu += time.process_time() - cpu_before
        spent += took[-1] / 1000
    return Cost(cpu / len(took) * 1000, len(took) / cpu, len(took), percentile(took, 50),
                percentile(took, 99))  # fmt: skip


def _joined() -> ExactIndex:
    index = ExactIndex(Keys((b"bench",)))
    for i in range(ENDPOINTS):
        index.join(EndpointId(f"pod-{i}"))
    return index


def request(draw: random.Random) -> Iterator[tuple[bytes, int]]:
    """Yield the payloads that tell of one request, each with the number of its blocks."""
    hashes = [draw.getrandbits(64) for _ in range(PROMPT_BLOCKS + ANSWER_BLOCKS)]
    yield _payload(_stored(draw, hashes[:PROMPT_BLOCKS], None)), PROMPT_BLOCKS
    for i in range(PROMPT_BLOCKS, len(hashes)):
        yield _payload(_stored(draw, hashes[i : i + 1], hashes[i - 1])), 1
    removed = [
        {"type": "BlockRemoved", "block_hashes": [each], "medium": "GPU", "group_idx": 0}
        for each in reversed(hashes)
    ]
    yield _payload(*removed), len(hashes)


def _stored(draw: random.Random, hashes: list[int], parent: int | None) -> dict[str, object]:
    return {
        "type": "BlockStored", "block_hashes": hashes, "parent_block_hash": parent,
        "token_ids": [draw.randrange(VOCABULARY) for _ in range(BLOCK * len(hashes))],
        "block_size": BLOCK, "lora_id": None, "medium": "GPU", "lora_name": None,
        "extra_keys": [None] * len(hashes), "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
    }  # fmt: skip


def _payload(*events: object) -> bytes:
    return msgspec.msgpack.encode([1.0, events, 0])


def _store(index: ExactIndex, endpoint: int, tokens: bytes) -> None:
    count = len(tokens) // (4 * BLOCK)
    tokens = tokens[: count * 4 * BLOCK]
    hashes = block_hashes(tokens, root=7, block_tokens=BLOCK, max_blocks=count)
    index.apply(EndpointId(f"pod-{endpoint}"), [Stored(hashes, None, tokens, BLOCK)])


def _prompt(draw: random.Random, shared: list[bytes]) -> bytes:
    return draw.choice(shared) + _tokens(draw, 4096)


def _tokens(draw: random.Random, count: int) -> bytes:
    return struct.pack(f"<{count}I", *(draw.randrange(VOCABULARY) for _ in range(count)))
