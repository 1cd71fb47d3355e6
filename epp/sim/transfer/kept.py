"""What a prefill engine knows of the KV it keeps for others: whose blocks hold which prompt; pure.

A block has no content here, so a fingerprint of the prompt stands for it: whoever fetches KV
compares it with its own prompt, and answers nonsense if they differ, as a model would.
"""

from __future__ import annotations

import msgspec
import xxhash

from epp.sim.cache import Ids

REMEMBERED = 4096  #: prompts; blocks of older ones count as used again


def fingerprint(prompt: Ids) -> int:
    """Return a number that stands for a prompt."""
    return int(xxhash.xxh64_intdigest(prompt.tobytes()))


class Kept(msgspec.Struct, frozen=True):
    """One prompt's KV."""

    request_id: str  #: told to who fetches it
    fingerprint: int
    blocks: tuple[int, ...]


class Shelf:
    """The prompts of one engine that can be fetched, by the number of their first block.

    Block numbers are made up, and not used again before all others were.
    """

    def __init__(self, capacity: int) -> None:
        """``capacity`` is the engine's number of blocks."""
        self._capacity = capacity
        self._next = 0
        self._kept: dict[int, Kept] = {}

    def put(self, request_id: str, prompt: Ids, count: int) -> Kept:
        """Put a prompt of ``count`` blocks there."""
        numbers = range(self._next, self._next + count)
        self._next += count
        kept = Kept(request_id, fingerprint(prompt), tuple(1 + n % self._capacity for n in numbers))
        self._kept.pop(kept.blocks[0], None)
        self._kept[kept.blocks[0]] = kept
        while len(self._kept) > REMEMBERED:
            del self._kept[next(iter(self._kept))]
        return kept

    def drop(self, kept: Kept) -> None:
        """Let the blocks be used again: from now on they hold something else."""
        if self._kept.get(kept.blocks[0]) is kept:
            del self._kept[kept.blocks[0]]

    def read(self, first_block: int) -> int | None:
        """Return the fingerprint of the prompt that starts there; None if that is unknown."""
        kept = self._kept.get(first_block)
        return None if kept is None else kept.fingerprint
