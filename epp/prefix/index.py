"""Who holds which block: block hash -> set of endpoints, with an LRU per endpoint.

Hot path: looked up and written once per request. The sets are Python integers, one bit per
endpoint, so that the work of a look-up does not grow with endpoints x blocks. An endpoint that
holds a block also holds the block's parent, so along a chain the sets only shrink, and
a look-up bisects between positions whose sets differ: a warm prompt of 2048 blocks takes a
dozen reads, whatever the number of endpoints.

That law ("a held block's parent is held") is kept by touching a chain from its leaf to its
root: the root is always the most recent, so the oldest entry of an endpoint never has a held
child, and eviction takes leaves first, as engines do.

An endpoint is dropped in O(1): its bit is masked out of every answer, and its entries are swept
by later writes, a bounded slice each; the bit is used again only after that.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import islice, repeat

from epp.model import BlockHash, EndpointId

MAX_ENTRIES = 1_000_000  #: of all endpoints together; at most about 0.3 GB
SWEEP = 1024  #: entries of dropped endpoints swept when one is dropped, about 0.3 ms

BLOCK_BYTES = 90  #: a block's own cost: slot in the dict, 64-bit hash, small set
ENTRY_BYTES = 50  #: cost of one (endpoint, block) pair: slot in the LRU

_SHARDS = 64  # growing one dict of 1 M entries stalls for 250 ms; of 64, never more than 2 ms
_SHARD = _SHARDS - 1

# A plain dict, least recent first. An OrderedDict takes twice the memory, and growing one of
# 30,000 entries stalls for 5 ms. Deleting from the front leaves gaps that the next iteration
# has to step over, so eviction takes all its victims in one.
_Recency = dict[BlockHash, float]
"""When each block was last learned, in the learner's time."""


class PrefixIndex:
    """Blocks held, by endpoint; forgets what an endpoint is believed to have evicted.

    Args:
        capacity: blocks one endpoint holds, unless `set_capacity` says otherwise; > 0.
        max_entries: (endpoint, block) pairs of all endpoints together, a bound on memory; > 0.
    """

    def __init__(self, capacity: int, max_entries: int = MAX_ENTRIES) -> None:
        self._capacity = capacity
        self._max_entries = max_entries
        # By the hash's low bits; bit i of a value: the endpoint in slot i holds the block.
        self._holders: list[dict[BlockHash, int]] = [{} for _ in range(_SHARDS)]
        self._slots: dict[EndpointId, int] = {}
        self._owners: list[EndpointId | None] = []  # by slot; None if free or retired
        self._held: list[_Recency] = []  # by slot, least recent first
        self._capacities: dict[EndpointId, int] = {}  # those that differ from the default
        self._live = 0  # bits of slots in use
        self._free: list[int] = []
        self._retired: list[int] = []  # still to be swept
        self._entries = 0
        self._unswept = 0
        self._victim = 0  # slot that gave way last when `max_entries` was reached

    @property
    def entries(self) -> int:
        """(endpoint, block) pairs of the endpoints that are here."""
        return self._entries

    @property
    def blocks(self) -> int:
        """Distinct blocks stored, those not swept yet included."""
        return sum(map(len, self._holders))

    @property
    def endpoints(self) -> int:
        """Endpoints that hold something."""
        return len(self._slots)

    @property
    def bytes(self) -> int:
        """Memory used, estimated from counts; within a third of the truth."""
        per_block = BLOCK_BYTES + len(self._held) // 8
        return self.blocks * per_block + (self._entries + self._unswept) * ENTRY_BYTES

    def capacity(self, endpoint_id: EndpointId) -> int:
        """Blocks that ``endpoint_id`` holds at most."""
        return self._capacities.get(endpoint_id, self._capacity)

    def held(self, endpoint_id: EndpointId) -> int:
        """Blocks that ``endpoint_id`` holds."""
        slot = self._slots.get(endpoint_id)
        return 0 if slot is None else len(self._held[slot])

    def set_capacity(self, endpoint_id: EndpointId, blocks: int) -> None:
        """Believe that ``endpoint_id`` holds ``blocks`` blocks (>= 0) at most, from now on."""
        self._capacities[endpoint_id] = blocks
        if (slot := self._slots.get(endpoint_id)) is not None:
            self._evict(slot, len(self._held[slot]) - blocks)

    def look_up(self, chain: Sequence[BlockHash]) -> Mapping[EndpointId, int]:
        """Leading blocks of ``chain`` that each endpoint holds; those with none are absent.

        O(d log(len(chain)) + h): d distinct lengths, h endpoints in the answer.
        """
        if not chain:
            return {}
        live = self._live
        holders = self._holders
        first = holders[chain[0] & _SHARD].get(chain[0], 0) & live
        if not first:
            return {}
        found: dict[EndpointId, int] = {}
        # Each span: position and set of a block, position and set of a later one.
        spans = [(0, first, len(chain), 0)]
        while spans:
            low, low_set, high, high_set = spans.pop()
            while high - low > 1:
                middle = (low + high) >> 1
                block = chain[middle]
                middle_set = holders[block & _SHARD].get(block, 0) & live
                if middle_set == low_set:
                    low = middle
                elif middle_set == high_set:
                    high = middle
                else:
                    spans.append((low, low_set, middle, middle_set))
                    low, low_set = middle, middle_set
            self._name(low_set & ~high_set, high, found)
        return found

    def touched(self, endpoint_id: EndpointId, block: BlockHash) -> float | None:
        """When ``endpoint_id`` last learned ``block``; None if it does not hold it."""
        slot = self._slots.get(endpoint_id)
        return None if slot is None else self._held[slot].get(block)

    def distrust(self, endpoint_id: EndpointId, share: float, least: int) -> int:
        """Take ``share`` (0.0 to 1.0) off what ``endpoint_id`` can hold, which was less than thought.

        It is taken off what is held or off its capacity, whichever is less, and from the least
        recent on. Returns its new capacity, which is at least ``least`` if it was before.
        """
        capacity = self.capacity(endpoint_id)
        believed = int(min(capacity, self.held(endpoint_id)) * (1.0 - share))
        believed = max(believed, min(least, capacity))
        self.set_capacity(endpoint_id, believed)
        return believed

    def learn(self, endpoint_id: EndpointId, chain: Sequence[BlockHash], now: float = 0.0) -> None:
        """Note that ``endpoint_id`` holds (or is about to hold) ``chain``, as its most recent.

        ``now`` is what `touched` says of these blocks from now on.

        Blocks beyond its capacity are left out, from the end. O(len(chain)).
        """
        chain = chain[: min(self.capacity(endpoint_id), self._max_entries)]
        self.sweep(2 * len(chain) + 16)
        if not chain:
            return
        slot = self._slots.get(endpoint_id)
        if slot is None:
            slot = self._add(endpoint_id)
        recency = self._held[slot]
        before = len(recency)
        holders = self._holders
        bit = 1 << slot
        known = bisect_left(chain, True, key=lambda block: block not in recency)
        for block in chain[known:]:
            shard = holders[block & _SHARD]
            shard[block] = shard.get(block, 0) | bit
        # Moved to the end by C loops: a long warm prompt costs 0.1 us a block, not 0.25.
        deque(map(recency.pop, chain[:known], repeat(None)), maxlen=0)
        recency.update(dict.fromkeys(reversed(chain), now))
        self._entries += len(recency) - before
        self._evict(slot, len(recency) - self.capacity(endpoint_id))
        self._make_room()

    def forget(self, endpoint_id: EndpointId) -> None:
        """Drop all that ``endpoint_id`` holds, at once for every reader. Unknown is no error."""
        self._capacities.pop(endpoint_id, None)
        slot = self._slots.pop(endpoint_id, None)
        if slot is None:
            return
        self._owners[slot] = None
        self._live &= ~(1 << slot)
        self._entries -= len(self._held[slot])
        self._unswept += len(self._held[slot])
        self._retired.append(slot)
        self.sweep(SWEEP)

    def sweep(self, limit: int) -> None:
        """Remove up to ``limit`` entries of dropped endpoints."""
        while self._retired and limit > 0:
            slot = self._retired[-1]
            count = min(limit, len(self._held[slot]))
            self._remove(slot, count)
            self._unswept -= count
            limit -= count
            if not self._held[slot]:
                self._held[slot] = {}  # an emptied one keeps its table
                self._free.append(self._retired.pop())

    def _add(self, endpoint_id: EndpointId) -> int:
        if self._free:
            slot = self._free.pop()
            self._owners[slot] = endpoint_id
        else:
            slot = len(self._owners)
            self._owners.append(endpoint_id)
            self._held.append({})
        self._slots[endpoint_id] = slot
        self._live |= 1 << slot
        return slot

    def _evict(self, slot: int, count: int) -> None:
        """Remove the ``count`` least recent entries of a live endpoint; nothing if <= 0."""
        if count > 0:
            self._remove(slot, count)
            self._entries -= count

    def _remove(self, slot: int, count: int) -> None:
        recency = self._held[slot]
        others = ~(1 << slot)
        for block in list(islice(recency, count)):
            del recency[block]
            shard = self._holders[block & _SHARD]
            if left := shard[block] & others:
                shard[block] = left
            else:
                del shard[block]

    def _make_room(self) -> None:
        """Hold `max_entries`: those with more than an equal share give way, in turn."""
        over = self._entries + self._unswept - self._max_entries
        if over <= 0:
            return
        self.sweep(over)
        share = self._max_entries // len(self._slots)
        while (over := self._entries + self._unswept - self._max_entries) > 0:
            slot = self._victim % len(self._held)
            above = len(self._held[slot]) - share
            if self._owners[slot] is None or above <= 0:
                self._victim = slot + 1
            else:
                self._evict(slot, min(over, above))

    def _name(self, members: int, blocks: int, found: dict[EndpointId, int]) -> None:
        """Enter ``blocks`` for every endpoint whose bit is set."""
        owners = self._owners
        if members.bit_count() > 16:  # 0.06 us a bit of the set, against 0.25 us a set bit
            digits = bin(members)[:1:-1]
            for slot, digit in enumerate(digits):
                if digit == "1" and (owner := owners[slot]) is not None:
                    found[owner] = blocks
            return
        while members:
            lowest = members & -members
            members ^= lowest
            if (owner := owners[lowest.bit_length() - 1]) is not None:
                found[owner] = blocks
