"""Many blocks of one engine at once, in the rows that its hashes have: the usual case.

Where no block has parts or is a part, one pass over the rows does what `Source` else does block by
block; `epp bench --only kv` tells what a block costs.
"""

from __future__ import annotations

from collections.abc import Sequence

from xxhash import xxh3_64_intdigest

from epp.prefix.exact.handles import MOST_COPIES, handles
from epp.prefix.exact.table import ABSENT, Slab, Table
from epp.prefix.exact.waiting import Waiting


class Rows:
    """Of one engine.

    Args:
        table: has the rows, by the engine's hash.
        slab: that they lie on.
    """

    def __init__(self, table: Table, slab: Slab) -> None:
        self._table = table
        self._names, self._copies = (column.data for column in slab.columns)

    def hold(
        self, engines: Sequence[int], where: int, tokens: bytes, size: int, name: int
    ) -> tuple[list[int], list[int]]:
        """Count a copy of each of several blocks in a row.

        Args:
            engines: the engine's hashes of them.
            where: as `salt` says.
            tokens: of all of them.
            size: bytes of one block's tokens.
            name: ours of the block before the first.

        Returns:
            Our names of those that were not there, and of all up to the first that there is no room for.
        """
        names, copies, digest = self._names, self._copies, xxh3_64_intdigest
        fresh, told = [], []
        at = 0
        for row in self._table.put_each(handles(engines, where)):
            if row == ABSENT:
                break
            if before := copies[row]:
                copies[row] = min(before + 1, MOST_COPIES)
                name = names[row]
            else:
                name = names[row] = digest(tokens[at : at + size], name)
                copies[row] = 1
                fresh.append(name)
            told.append(name)
            at += size
        return fresh, told

    def release(self, engines: Sequence[int], where: int, waiting: Waiting) -> list[int]:
        """Count one copy less of each block; return our names of those that are gone."""
        names, copies, gone = self._names, self._copies, []
        keys = handles(engines, where)
        for key, row in zip(keys, self._table.find_each(keys), strict=True):
            before = 0 if row == ABSENT else copies[row]
            if before:
                copies[row] = before - 1
                if before == 1:
                    gone.append(names[row])
            elif waiting:
                waiting.removed(key)
        return gone
