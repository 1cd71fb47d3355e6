"""The tiers below a GPU: which blocks they hold, and how long it takes to load them; pure.

What is computed is copied to the CPU's memory at once, and from there to the disk, so that a block
outlives its place on the GPU. A prompt's blocks after those on the GPU are loaded: from the disk to the
CPU first. Each tier gives up what was used least recently, of a prompt its end first.

**Source:** vLLM 0.32's ``OffloadingConnector``, with tiers of media ``CPU`` and ``STORAGE``. Its own
tier of files gives up nothing; ours is bounded and tells what it gives up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

CPU, DISK = "CPU", "STORAGE"  #: as vLLM's events call them
CPU_RATE = 400_000.0  #: tokens per second to the GPU; 52 GB/s for an 8B model
DISK_RATE = 80_000.0  #: and from the disk to the CPU


class Offload(msgspec.Struct, frozen=True):
    """How much lower tiers hold, and how fast they are."""

    cpu_blocks: int = 0  #: 0: there are no lower tiers
    disk_blocks: int = 0
    cpu_rate: float = CPU_RATE
    disk_rate: float = DISK_RATE


class Change(msgspec.Struct, frozen=True):
    """A block came to a tier, or left it."""

    block: int
    medium: str
    stored: bool


class Tiers:
    """Of one engine. True if there are any.

    Args:
        journal: keep what `news` tells.
    """

    def __init__(self, offload: Offload, *, block_tokens: int, journal: bool = False) -> None:
        self._offload = offload
        self._block_tokens = block_tokens
        self._journal = journal
        self._cpu: dict[int, None] = {}  # the least recently used first
        self._disk: dict[int, None] = {}
        self._changes: list[Change] = []
        self._free_at = 0.0  # the link to the GPU carries one load after another

    def __bool__(self) -> bool:
        return self._offload.cpu_blocks > 0

    def store(self, blocks: Sequence[int]) -> None:
        """Hold blocks that the GPU holds, in prompt order."""
        if not self:
            return
        for block in reversed(blocks):
            self._put(self._cpu, block, CPU, self._offload.cpu_blocks)
            self._put(self._disk, block, DISK, self._offload.disk_blocks)

    def match(self, blocks: Sequence[int]) -> Sequence[int]:
        """Return the leading ``blocks`` that are here."""
        return tuple(self._leading(blocks))

    def load(self, blocks: Sequence[int], at: float) -> float:
        """Begin to load what `match` found; return when it is on the GPU, in the caller's seconds."""
        slow = sum(block not in self._cpu for block in blocks) * self._block_tokens
        seconds = slow / self._offload.disk_rate
        seconds += len(blocks) * self._block_tokens / self._offload.cpu_rate
        self._free_at = max(self._free_at, at) + seconds
        self.store(blocks)
        return self._free_at

    def news(self) -> Sequence[Change]:
        """Return the changes since this was last asked, in order."""
        changes, self._changes = self._changes, []
        return changes

    def _leading(self, blocks: Sequence[int]) -> Iterator[int]:
        for block in blocks:
            if block not in self._cpu and block not in self._disk:
                return
            yield block

    def _put(self, tier: dict[int, None], block: int, medium: str, capacity: int) -> None:
        """Hold a block as the one used last, in the place of the one used least recently."""
        if block in tier:
            del tier[block]
            tier[block] = None
        elif capacity:
            while len(tier) >= capacity:
                oldest = next(iter(tier))
                del tier[oldest]
                self._note(oldest, medium, stored=False)
            tier[block] = None
            self._note(block, medium, stored=True)

    def _note(self, block: int, medium: str, *, stored: bool) -> None:
        if self._journal:
            self._changes.append(Change(block, medium, stored))
