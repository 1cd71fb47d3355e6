"""Blocks kept after a request has ended, until another engine has read them; pure.

A prefill engine cannot know when, or if, the decode engine will come. So it keeps the blocks for
a while only: whoever comes later reads what is in them by then.

**Source:** vLLM 0.32 with its NIXL connector, as observed: ``kv_lease_duration``, 30 s by default.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from epp.sim.cache import BlockCache


class Lease(msgspec.Struct, frozen=True):
    """What one request left behind."""

    held: Sequence[int]  #: blocks known by hash, in prompt order
    private: int  #: other blocks
    until: float  #: seconds on the engine's time


class Leases:
    """Leases of one engine, all of the same length: the first one made is the first to end."""

    def __init__(self, cache: BlockCache, seconds: float) -> None:
        self._cache = cache
        self._seconds = seconds
        self._leases: dict[str, Lease] = {}

    def __len__(self) -> int:
        return len(self._leases)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._leases

    def add(self, request_id: str, blocks: tuple[Sequence[int], int], at: float) -> None:
        """Keep a request's held and private blocks from now on."""
        held, private = blocks
        self._leases[request_id] = Lease(held, private, at + self._seconds)

    def release(self, request_id: str) -> bool:
        """Give the blocks back; False if there is no such lease (any more)."""
        lease = self._leases.pop(request_id, None)
        if lease is None:
            return False
        self._cache.release(lease.held, lease.private)
        return True

    def expire(self, at: float) -> list[str]:
        """Give back what has been kept for too long; return whose it was."""
        over = []
        for request_id, lease in self._leases.items():
            if lease.until > at:
                break
            over.append(request_id)
        for request_id in over:
            self.release(request_id)
        return over
