"""Canonical prompt to chained block hashes.

``h[i] = xxh3_64(block_i, seed=h[i-1])`` over blocks of ``block_tokens`` tokens of four bytes each,
so equal hashes mean equal prefixes, up to collisions of 64 bits. Only full blocks count: an engine
caches nothing smaller. The chain starts at `root`, which carries model and salt, so two models or
two tenants never share a block. The hashes are the same in every process and on every machine.

Hot path: 0.15 to 0.3 us per block of 64 tokens (CPython 3.11, one core); 0.03 us if `Runs` knows it.

**Source:** XXH3 by Yann Collet, https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md;
chaining on the parent's hash is how vLLM names its KV blocks (``hash_block_tokens``).
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Sequence
from typing import cast

from xxhash import xxh3_64_intdigest

from epp.model import BlockHash

BYTES_PER_TOKEN = 4  #: of the canonical prompt; exact for token ids, an estimate for text
BLOCK_TOKENS = 64
MAX_BLOCKS = 2048
RUN = 16  #: blocks that are remembered together

_SIZE = struct.Struct("<Q")


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


class Runs:
    """Hashes of runs of blocks seen lately: conversations repeat what they said before.

    A run is known by its own hash and that of its parent, so a known one costs one hash instead
    of many. Two generations: what is not asked for again is gone after ``most`` new ones.

    Args:
        most: runs of a generation.
        length: blocks of a run. Longer ones cost less, and a longer tail is hashed block by block.
    """

    def __init__(self, most: int = 4096, *, length: int = RUN) -> None:
        self.length = length
        self._most = most
        self._young: dict[tuple[int, int], tuple[int, ...]] = {}
        self._old: dict[tuple[int, int], tuple[int, ...]] = {}

    def get(self, key: tuple[int, int]) -> tuple[int, ...] | None:
        """Return the run's chained hashes, if it was seen lately."""
        found = self._young.get(key)
        if found is None and (found := self._old.get(key)) is not None:
            self.put(key, found)
        return found

    def put(self, key: tuple[int, int], hashes: tuple[int, ...]) -> None:
        """Remember a run."""
        if len(self._young) >= self._most:
            self._old, self._young = self._young, {}
        self._young[key] = hashes


def block_hashes(
    prompt: bytes,
    *,
    root: int,
    block_tokens: int = BLOCK_TOKENS,
    max_blocks: int = MAX_BLOCKS,
    runs: Runs | None = None,
) -> tuple[BlockHash, ...]:
    """Return the hashes of the prompt's full blocks, in order, at most ``max_blocks``.

    ``runs`` makes it faster and changes nothing; one instance serves one ``block_tokens``.

    Raises:
        ValueError: ``block_tokens`` is below 1.
    """
    if block_tokens < 1:
        raise ValueError(f"a block holds at least one token, not {block_tokens}")
    size = block_tokens * BYTES_PER_TOKEN
    count = min(len(prompt) // size, max_blocks)
    chain: list[int] = []
    parent, whole = root, 0
    if runs is not None:
        whole = count - count % runs.length
        step = runs.length * size
        for start in range(0, whole * size, step):
            key = (parent, xxh3_64_intdigest(prompt[start : start + step]))
            run = runs.get(key)
            if run is None:
                run = _chain(prompt, parent, range(start, start + step, size))
                runs.put(key, run)
            chain += run
            parent = run[-1]
    chain += _chain(prompt, parent, range(whole * size, count * size, size))
    return cast("tuple[BlockHash, ...]", tuple(chain))


def packed(chain: Sequence[BlockHash], block_tokens: int) -> bytes:
    """Return hashes as they are told to other pickers: tokens per block, then 64 bits each."""
    hashes = array("Q", chain)
    if sys.byteorder == "big":
        hashes.byteswap()
    return _SIZE.pack(block_tokens) + hashes.tobytes()


def unpacked(fact: bytes) -> tuple[tuple[BlockHash, ...], int]:
    """Return what was `packed`.

    Raises:
        ValueError: nothing was.
    """
    if len(fact) <= _SIZE.size or len(fact) % _SIZE.size:
        raise ValueError(f"{len(fact)} bytes are no hashes of blocks")
    hashes = array("Q", fact[_SIZE.size :])
    if sys.byteorder == "big":
        hashes.byteswap()
    return cast("tuple[BlockHash, ...]", tuple(hashes)), _SIZE.unpack_from(fact)[0]


def _chain(prompt: bytes, parent: int, starts: range) -> tuple[int, ...]:
    digest, size = xxh3_64_intdigest, starts.step
    return tuple([parent := digest(prompt[start : start + size], parent) for start in starts])
