"""The nouns of KV-cache events, whatever engine sent them and in whatever layout.

Token ids are carried packed and only until their blocks are hashed; no ``repr`` shows them, so
none can reach a log by accident.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

import msgspec

HASH_MASK = (1 << 64) - 1  #: engines' hashes are compared by their low 64 bits


class Tier(IntEnum):
    """Where a block lies, the fastest first."""

    GPU = 0  #: the memory that the engine computes in, of whatever device
    EXPECTED = 1  #: on its way: picked lately, and no event has told it yet
    CPU = 2
    DISK = 3
    SHARED = 4  #: outside the pod


class Stored(msgspec.Struct, frozen=True, gc=False, repr_omit_defaults=True):
    """Consecutive blocks that an engine holds from now on.

    Without tokens it is a placeholder: blocks that are known already lie in another tier too.
    """

    hashes: tuple[int, ...]  #: the engine's own, 64 bits each, in order
    parent: int | None  #: the engine's hash of the block before the first; None at a prompt's start
    tokens: bytes  #: of all blocks, four bytes each, little-endian; b"" in a placeholder
    block_tokens: int  #: tokens per block; 0 in a placeholder
    tier: Tier = Tier.GPU
    adapter: str = ""  #: LoRA adapter; "" is the base model
    salt: str = ""  #: the request's cache salt, where the event holds a prompt's start
    media: tuple[tuple[int, str], ...] = ()
    """Images and the like that begin in these tokens: position in tokens, the engine's name."""
    group: int = 0  #: of KV caches: layers that are cached alike
    kind: str = ""  #: of attention of that group; "" if not told

    def __repr__(self) -> str:
        return f"Stored({len(self.hashes)} blocks, {self.tier.name}, group {self.group})"


class Removed(msgspec.Struct, frozen=True, gc=False):
    """One copy of each of these blocks is gone."""

    hashes: tuple[int, ...]
    tier: Tier = Tier.GPU
    group: int = 0


class Cleared(msgspec.Struct, frozen=True):
    """Every block of the engine is gone."""


Event = Stored | Removed | Cleared


class Batch(msgspec.Struct, frozen=True):
    """What one message said."""

    at: float  #: seconds since 1970, by the engine's clock
    events: tuple[Event, ...]  #: in order
    rank: int | None = None  #: the data-parallel rank that sent it; None if not told
    unread: Mapping[str, int] = {}  #: events left out, counted by the reason: a fixed word
