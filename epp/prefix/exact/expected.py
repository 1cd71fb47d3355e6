"""Blocks that an engine will hold, as a request for it was just picked, until its events say so.

Without this, all requests of a burst are decided before the first event of any of them. An
expectation that no event confirms ends by itself.

A request is awaited for longer, until it is answered, as it may stand in the engine's queue: once
its last block is told its prompt is computed, which nothing else tells before its answer begins.

It also mends what was lost. Engines never tell again of a prefix that they go on using, so who
missed its events would never know it. But a request with that prefix was picked by us, and what it
adds is told with the prefix's last block as parent: the block that fits shows which one that is.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from xxhash import xxh3_64_intdigest

from epp.prefix.exact.events import Tier
from epp.prefix.exact.held import Blocks
from epp.prefix.exact.holders import place

MOST_BLOCKS = 65_536  #: that one engine is expected to hold
MOST_NAMES = 4 * MOST_BLOCKS  #: of all prompts that are expected: they share blocks
MOST_AWAITED = 4096  #: requests of one engine, whose last block is to be told
MOST_TRIES = 16_384  #: hashes to find out blocks' parents between two `expire`, 0.1 us each


class Tries:
    """How many hashes may be tried yet, by all engines."""

    def __init__(self) -> None:
        self.left = MOST_TRIES

    def renew(self) -> None:
        """Allow `MOST_TRIES` again."""
        self.left = MOST_TRIES


class Expected:
    """Of one engine, in the slot it has in the sets of holders."""

    def __init__(self, blocks: Blocks, slot: int) -> None:
        self.computed: list[str] = []
        """Requests whose last block was told; the reader empties it."""
        self._blocks = blocks
        self._place = place(slot, Tier.EXPECTED)
        self._until: dict[int, float] = {}  # by block
        self._ends: list[tuple[float, int, Sequence[int]]] = []  # a heap
        self._count = self._names = 0  # ever; in the heap
        self._requests: dict[int, list[str]] = {}  # that are awaited, by their last block
        self._last: dict[str, int] = {}  # the block of each of them

    def __bool__(self) -> bool:
        return bool(self._until or self._requests)

    def __contains__(self, block: int) -> bool:
        return block in self._until or block in self._requests

    def add(self, names: Sequence[int], until: float, *, held: int) -> None:
        """Expect a prompt's blocks until a time, of which the first ``held`` are known to be there.

        More than `MOST_BLOCKS` are not expected; of too many prompts, those that end first are not.
        """
        if held >= len(names) or len(self._until) + len(names) - held > MOST_BLOCKS:
            return
        now = self._until
        fresh = [name for name in names[held:] if name not in now]
        self._blocks.add_all(fresh, self._place)
        if len(fresh) < len(names) - held:
            now.update({name: until for name in names[held:] if now.get(name, until) < until})
        now.update(dict.fromkeys(fresh, until))
        self._count += 1
        self._names += len(names)
        heapq.heappush(self._ends, (until, self._count, names))
        while self._names > MOST_NAMES:
            self.expire(self._ends[0][0])

    def wait(self, request: str, last: int) -> None:
        """Have `computed` tell of a request once its block ``last`` is told."""
        self.answered(request)
        if len(self._last) >= MOST_AWAITED:
            self.answered(next(iter(self._last)))
        self._requests.setdefault(last, []).append(request)
        self._last[request] = last

    def answered(self, request: str) -> None:
        """Note that a request is over: it is not awaited any more."""
        last = self._last.pop(request, None)
        if last is not None:
            waiting = self._requests[last]
            waiting.remove(request)
            if not waiting:
                del self._requests[last]

    def told(self, name: int) -> None:
        """Note that an event told a block, which may be one of those expected or awaited."""
        if self._until.pop(name, None) is not None:
            self._blocks.remove(name, self._place)
        self._computed(name)

    def came(self, fresh: Sequence[int], told: Sequence[int], where: int) -> int:
        """Let look-ups find the blocks ``fresh`` at a `place`, as an event told blocks.

        Those of them that were expected are not any more, nor are others of all that it ``told``.
        Return for how many blocks there is no room.
        """
        blocks, over = self._blocks, self._told_all(told) if self else ()
        if not over:
            return blocks.add_all(fresh, where)
        those = frozenset(over)
        seen = [name for name in fresh if name in those]
        refused = blocks.add_all([name for name in fresh if name not in those], where)
        if those.issubset(seen):
            return refused + blocks.move_all(over, self._place, where)
        refused += blocks.add_all(seen, where)
        blocks.remove_all(over, self._place)
        return refused

    def _told_all(self, names: Sequence[int]) -> list[int]:
        """Return the blocks that were expected and are told now, each once."""
        until = self._until
        over = [name for name in names if until.pop(name, None) is not None]
        if self._requests:
            for name in names:
                self._computed(name)
        return over

    def _computed(self, name: int) -> None:
        for request in self._requests.pop(name, ()):
            del self._last[request]
            self.computed.append(request)

    def before(self, block: bytes, tries: Tries) -> Sequence[int]:
        """Return the blocks that stand before ``block`` (its tokens) in a prompt that is expected.

        Empty if no prompt has it, or has it as its first, or ``tries`` are used up.
        """
        for _, _, names in reversed(self._ends):
            if tries.left < len(names):
                break
            for at in range(1, len(names)):
                if xxh3_64_intdigest(block, names[at - 1]) == names[at]:
                    tries.left -= at
                    return names[:at]
            tries.left -= len(names)
        return ()

    def expire(self, now: float) -> None:
        """Expect nothing more whose time is over."""
        while self._ends and self._ends[0][0] <= now:
            _, _, names = heapq.heappop(self._ends)
            self._names -= len(names)
            until = self._until
            over = [name for name in names if until.get(name, now + 1) <= now]
            for name in over:
                until.pop(name, None)
            self._blocks.remove_all(over, self._place)

    def clear(self) -> list[int]:
        """Expect nothing; return the blocks that were expected, which the index still has."""
        names = list(self._until)
        self._until.clear()
        self._ends.clear()
        self._names = 0
        self._requests.clear()
        self._last.clear()
        return names
