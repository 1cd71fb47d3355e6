"""Canonical prompt to chained block hashes.

``h[i] = xxh3_64(block_i, seed=h[i-1])`` over blocks of ``block_tokens`` tokens of four bytes each,
so equal hashes mean equal prefixes, up to collisions of 64 bits. Only full blocks count: an engine
caches nothing smaller. The chain starts at `root`, which carries model and salt, so two models or
two tenants never share a block. The hashes are the same in every process and on every machine.

Hot path: 0.15 to 0.3 us per block of 64 tokens (CPython 3.11, one core).

**Source:** XXH3 by Yann Collet, https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md;
chaining on the parent's hash is how vLLM names its KV blocks (``hash_block_tokens``).
"""

from __future__ import annotations

import struct
from typing import cast

from xxhash import xxh3_64_intdigest

from epp.model import BlockHash

BYTES_PER_TOKEN = 4  #: of the canonical prompt; exact for token ids, an estimate for text
BLOCK_TOKENS = 64
MAX_BLOCKS = 2048


def root(model: str, salt: str = "", *, secret: bytes = b"") -> int:
    """Return the hash that the first block is chained on.

    Args:
        model: the name the engine is asked for, which tells LoRA adapters apart.
        salt: the client's cache salt; '' is none.
        secret: keeps outsiders from computing hashes; the same in all replicas that share them.
    """
    parts = (model.encode("utf-8", "surrogatepass"), salt.encode("utf-8", "surrogatepass"), secret)
    lengths = struct.pack("<3Q", *map(len, parts))  # frames: no two keys read alike
    return xxh3_64_intdigest(lengths + b"".join(parts))


def block_hashes(
    prompt: bytes, *, root: int, block_tokens: int = BLOCK_TOKENS, max_blocks: int = MAX_BLOCKS
) -> tuple[BlockHash, ...]:
    """Return the hashes of the prompt's full blocks, in order, at most ``max_blocks``.

    Raises:
        ValueError: ``block_tokens`` is below 1.
    """
    if block_tokens < 1:
        raise ValueError(f"a block holds at least one token, not {block_tokens}")
    size = block_tokens * BYTES_PER_TOKEN
    count = min(len(prompt) // size, max_blocks)
    parent, digest = root, xxh3_64_intdigest
    chain = [
        parent := digest(prompt[start : start + size], parent)
        for start in range(0, count * size, size)
    ]
    return cast("tuple[BlockHash, ...]", tuple(chain))
