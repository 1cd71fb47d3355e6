"""Engines' hashes as keys: one for each tier and each group of caches a block can lie in.

Where an engine's blocks are smaller than ours, several are pieces of one of ours, which is of use
only as long as all of them are there: `Pieces` knows whose they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from epp.prefix.exact.events import HASH_MASK, Tier
from epp.prefix.exact.table import ABSENT, Slab, Table

_ODD = 0x9E3779B97F4A7C15  # 2 ** 64 over the golden ratio: spreads hashes that are small numbers
_TIERS = tuple(0xD1B54A32D192ED03 * tier & HASH_MASK for tier in Tier)
_GROUP = 0x8CB92BA72F3D8DD7
_PIECE = 1 << 24  # first number of parts that stands for a piece: no block has so many parts
MOST_OWNERS = 5  #: blocks of ours whose common piece is known to be theirs
MOST_COPIES = 65_535  #: of a block that are counted
NO_NAME = 1  #: of a piece whose block is not whole yet


def salt(tier: Tier, group: int) -> int:
    """Return what tells a tier and a group from the others in `handle`."""
    return _TIERS[tier] + _GROUP * group & HASH_MASK


def handle(engine: int, tier_and_group: int) -> int:
    """Return the key of an engine's hash, given a `salt`; never 0."""
    return ((engine ^ engine >> 32) * _ODD + tier_and_group) & HASH_MASK or 1


def handles(engines: Iterable[int], tier_and_group: int) -> list[int]:
    """Return what `handle` does, of several hashes, in fewer calls."""
    odd, mask = _ODD, HASH_MASK
    return [((each ^ each >> 32) * odd + tier_and_group) & mask or 1 for each in engines]


def part(engine: int, number: int) -> int:
    """Return what stands for the ``number``-th part of a block that is larger than ours."""
    return (engine + (number + 1) * _GROUP) & HASH_MASK


class Pieces:
    """Blocks of one engine that end within one of ours, and which of ours they are pieces of.

    Args:
        table: to keep them in: a row for each piece counts its copies and names the first owner, up
            to `MOST_OWNERS` - 1 more rows name others.
        rows: those of ``table``.
    """

    def __init__(self, table: Table, rows: Slab) -> None:
        self.used = False  #: there ever was one
        self._table = table
        self._names, self._copies = (column.data for column in rows.columns)

    def hold(self, engine: int, where: int, copies: int) -> bool:
        """Count ``copies`` more of a piece, ``where`` as `salt` says; False if there is no room."""
        self.used = True
        row = self._table.put(_owner(engine, 0, where))
        if row == ABSENT:
            return False
        if not self._copies[row]:
            self._names[row] = NO_NAME
        self._copies[row] = min(self._copies[row] + copies, MOST_COPIES)
        return True

    def complete(self, pieces: Sequence[int], where: int, name: int) -> bool:
        """Say whether all ``pieces`` are held; if so, ``name`` is theirs until one is not."""
        rows = [self._table.find(_owner(engine, 0, where)) for engine in pieces]
        if not all(row != ABSENT and self._copies[row] for row in rows):
            return False
        for engine in pieces:
            row = self._table.find(_owner(engine, 0, where))  # rows move when others are put
            if self._names[row] == NO_NAME:
                self._names[row] = name
            elif self._names[row] != name:
                self._own(engine, where, name)
        return True

    def release(self, engine: int, where: int) -> tuple[int, ...] | None:
        """Count one copy less; return the blocks that miss it now, None if it is no piece."""
        row = self._table.find(_owner(engine, 0, where)) if self.used else ABSENT
        if row == ABSENT or not self._copies[row]:
            return None
        self._copies[row] -= 1
        if self._copies[row]:
            return ()
        rows = [self._table.find(_owner(engine, n, where)) for n in range(1, MOST_OWNERS)]
        more = [other for other in rows if other != ABSENT and self._copies[other]]
        for other in more:
            self._copies[other] = 0
        return tuple([self._names[each] for each in (row, *more)])

    def _own(self, engine: int, where: int, name: int) -> None:
        """Name one more owner, in place of another if there are too many."""
        number = 1 + name % (MOST_OWNERS - 1)
        for each in range(1, MOST_OWNERS):
            row = self._table.find(_owner(engine, each, where))
            if row == ABSENT or not self._copies[row]:
                number = each
                break
            if self._names[row] == name:
                return
        row = self._table.put(_owner(engine, number, where))
        if row != ABSENT:
            self._names[row], self._copies[row] = name, 1


def _owner(engine: int, number: int, where: int) -> int:
    return handle(part(engine, _PIECE + number), where)
