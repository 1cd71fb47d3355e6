"""Blocks by our own names, and who holds them: what every look-up reads.

Hot path: one `Blocks.add` or `Blocks.remove` for each block an engine stores or removes, 0.6 us.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

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

    def add_all(self, blocks: Iterable[int], where: int) -> None:
        """Note that ``blocks`` lie at a `place`, as far as there is room: half a microsecond each."""
        self._move_all(blocks, where, row_of=self._table.put, step=self.holders.added)

    def remove_all(self, blocks: Iterable[int], where: int) -> None:
        """Note that ``blocks`` are gone from a `place`, wherever they lay there."""
        self._move_all(blocks, where, row_of=self._table.find, step=self.holders.removed)

    def _move_all(
        self,
        blocks: Iterable[int],
        where: int,
        *,
        row_of: Callable[[int], int],
        step: Callable[[int, int], int],
    ) -> None:
        """Take each block's set one ``step``, looked up once for all blocks that have the same."""
        sets = self._sets
        after_of: dict[int, int] = {}
        counts: dict[int, int] = {}
        for block in blocks:
            row = row_of(block or 1)
            if row == ABSENT:
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
        for before, count in counts.items():
            self.holders.move(before, after_of[before], count)

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

    def sets(self, chain: Keys) -> NDArray[np.uint32]:
        """Return the number of the set that holds each block of ``chain``."""
        if not self._table:
            return np.zeros(len(chain), np.uint32)
        found: NDArray[np.uint32] = self._column[self._table.find_many(chain)]
        return found
