"""Blocks by our own names, and who holds them: what every look-up reads.

Hot path: one `Blocks.add` or `Blocks.remove` for each block an engine stores or removes, 0.6 us.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from epp.prefix.exact.holders import NOBODY, Holders
from epp.prefix.exact.table import ABSENT, Keys, Slab, Table

ROWS = 4096  #: of a segment: rearranging one takes 0.3 ms
ROW_BYTES = 12


class Blocks:
    """Sets of holders by block. A block's name is never 0 to it: that is read as 1.

    Args:
        segments: of `ROWS` rows each, a hard bound.
        sets: of holders, that differ, a hard bound.
    """

    def __init__(self, segments: int, sets: int) -> None:
        self.holders = Holders(sets)
        self.count = 0  #: blocks that somebody holds
        self._slab = Slab(segments, ROWS, (np.uint32,))
        self._table = Table(self._slab)
        self._column = self._slab.columns[0]
        self._sets = self._column.data

    @property
    def bytes(self) -> int:
        """Memory used by rows and sets."""
        return self._slab.bytes + self.holders.bytes

    def add(self, block: int, where: int) -> bool:
        """Note that ``block`` lies at a `place`; False if there is no room for it."""
        row = self._table.put(block or 1)
        if row == ABSENT:
            return False
        before = self._sets[row]
        after = self._sets[row] = self.holders.added(before, where)
        if before == NOBODY:
            self.count += after != NOBODY
        return after != before or self.holders.has(after, where)

    def remove(self, block: int, where: int) -> None:
        """Note that ``block`` is gone from a `place`; no error if it never lay there."""
        row = self._table.find(block or 1)
        if row == ABSENT or not (before := self._sets[row]):
            return
        after = self._sets[row] = self.holders.removed(before, where)
        if after == NOBODY:
            self.count -= 1

    def add_all(self, blocks: Sequence[int], where: int) -> int:
        """Note that ``blocks`` lie at a `place`: a third of a microsecond each.

        Return for how many of them there was no room.
        """
        return self._move_all(blocks, self.holders.added, where=where)

    def remove_all(self, blocks: Sequence[int], where: int) -> None:
        """Note that ``blocks`` are gone from a `place`, wherever they lay there."""
        self._move_all(blocks, self.holders.removed, where=where, puts=False)

    def move_all(self, blocks: Sequence[int], before: int, after: int) -> int:
        """Note that ``blocks`` lie at the `place` ``after``, and are gone from ``before``.

        Return for how many of them there was no room.
        """
        added, removed = self.holders.added, self.holders.removed
        return self._move_all(
            blocks, lambda number, where: removed(added(number, where), before), where=after
        )

    def _move_all(
        self,
        blocks: Sequence[int],
        step: Callable[[int, int], int],
        *,
        where: int,
        puts: bool = True,
    ) -> int:
        """Take each block's set one ``step``, looked up once for all blocks that have the same."""
        sets, of = self._sets, self._table.put_each if puts else self._table.find_each
        keys = [block or 1 for block in blocks] if 0 in blocks else blocks
        after_of: dict[int, int] = {}
        counts: dict[int, int] = {}
        refused = 0
        for row in of(keys):
            if row == ABSENT:
                refused += 1
                continue
            before = sets[row]
            after = after_of.get(before)
            if after is None:
                after_of[before] = after = step(before, where)  # which counts the first of them
                counts[before] = 0
            else:
                counts[before] += 1
            sets[row] = after
            if before == NOBODY:
                self.count += after != NOBODY
            elif after == NOBODY:
                self.count -= 1
        for before, more in counts.items():
            after = after_of[before]
            self.holders.move(before, after, more)
            if puts and not self.holders.has(after, where):
                refused += more + 1
        return refused

    def has_room(self, blocks: int) -> bool:
        """Whether so many more would find room, however they and their holders differ."""
        slab, holders = self._slab, self.holders
        return slab.segments - slab.segments_used > blocks and holders.left > blocks

    def forget(self, blocks: Keys, slot: int) -> None:
        """Note that an endpoint has none of ``blocks``, in any tier. They may repeat."""
        if not self._table or not blocks.size:
            return
        rows = np.unique(self._table.find_many(blocks))
        before = self._column[rows]
        numbers, which, counts = np.unique(before, return_inverse=True, return_counts=True)
        after = [
            self.holders.without(int(number), slot, int(count)) if number else NOBODY
            for number, count in zip(numbers, counts, strict=True)
        ]
        self._column[rows] = np.array(after, np.uint32)[which]
        emptied = [count for number, left, count in zip(numbers, after, counts, strict=True)
                   if number and not left]  # fmt: skip
        self.count -= int(sum(emptied))
        if not self.count:
            self._table.clear()

    def sets_each(self, chain: Sequence[int]) -> Iterator[int]:
        """Yield the number of the set that holds each block of a short ``chain``."""
        sets = self._sets
        for row in self._table.find_each([block or 1 for block in chain]):
            yield NOBODY if row == ABSENT else sets[row]

    def sets(self, chain: Keys) -> NDArray[np.uint32]:
        """Return the number of the set that holds each block of ``chain``."""
        if not self._table:
            return np.zeros(len(chain), np.uint32)
        found: NDArray[np.uint32] = self._column[self._table.find_many(chain)]
        return found
