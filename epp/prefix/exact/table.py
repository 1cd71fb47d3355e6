"""Hash tables of 64-bit keys that grow without a stall and shrink to what they hold.

A Python dictionary costs 100 bytes an entry with its boxed numbers, and growing one of a million
entries stops the process for a quarter of a second. Here rows lie in typed columns, in segments of
fixed size that one `Slab` hands out up to a hard bound. A `Table` is a directory of segments
by the top bits of the key; a full segment is rid of its dead rows or split in two, which touches
no other (extendible hashing). Within a segment it is linear probing.

A row is dead when its last column is 0. Its key stays, and so does what it said, until the segment
is full: engines evict and store the same blocks again and again.

Hot path: `Table.find` 0.25 us, `Table.put` 0.3 us, `Table.find_many` 0.02 to 0.07 us a key in bulk.

**Source:** Fagin, Nievergelt, Pippenger, Strong: Extendible Hashing (1979).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat

import numpy as np
from numpy.typing import DTypeLike, NDArray

Keys = NDArray[np.uint64]
Rows = NDArray[np.intp]

KEY_BITS = 64
HOME = 20  #: the key's bits from here on say where in its segment a row belongs
MAX_DEPTH = 24  #: of a directory; keys that agree in so many bits are no hashes
FILL, CROWDED = 5 / 8, 7 / 16
"""A segment with so much of it taken is full; and is split if so much is alive."""

ABSENT = -1
FEW = 32  #: keys that are looked for one by one: a step for all of them costs more

_HOME = np.uint64(HOME)


class Slab:
    """Rows for many tables, in segments.

    Args:
        segments: how many there can be; memory is touched only for those in use.
        rows: of one segment, a power of two.
        columns: types of what a row holds beside its key; the last is 0 in a dead row.
    """

    def __init__(self, segments: int, rows: int, columns: Sequence[DTypeLike]) -> None:
        self.rows = rows
        self.segments = segments
        self.keys = np.zeros(segments * rows, np.uint64)
        self.columns = tuple(np.zeros(segments * rows, column) for column in columns)
        self.taken = [0] * segments  #: rows of each segment that have a key, dead ones included
        self._fresh = 0  # segments from here on were never used
        self._free: list[int] = []

    @property
    def row_bytes(self) -> int:
        """Of one row, all its columns together."""
        return 8 + sum(column.itemsize for column in self.columns)

    @property
    def segments_used(self) -> int:
        """Segments that a table has."""
        return self._fresh - len(self._free)

    @property
    def bytes(self) -> int:
        """Memory that was touched."""
        return self._fresh * self.rows * self.row_bytes

    def take(self) -> int:
        """Hand out an empty segment; `ABSENT` if there is none left."""
        if self._free:
            return self._free.pop()
        if self._fresh == self.segments:
            return ABSENT
        self._fresh += 1
        return self._fresh - 1

    def give_back(self, segment: int) -> None:
        """Take a segment back, whatever is in it."""
        self.wipe(segment)
        self._free.append(segment)

    def wipe(self, segment: int) -> None:
        """Empty a segment."""
        start = segment * self.rows
        self.keys[start : start + self.rows] = 0
        self.columns[-1][start : start + self.rows] = 0
        self.taken[segment] = 0

    def alive(self, segment: int) -> Rows:
        """Rows of a segment that are not dead."""
        start = segment * self.rows
        return np.flatnonzero(self.columns[-1][start : start + self.rows]) + start


class Table:
    """Rows by key, on a slab that other tables may use too. A key is never 0."""

    def __init__(self, slab: Slab) -> None:
        self._slab = slab
        self._keys = slab.keys.data
        self._within = slab.rows - 1
        self._full = int(slab.rows * FILL)
        # Segments by the keys' top bits: 2 ** depth of them, or none before the first row.
        self._directory: list[int] = []
        self._depths: dict[int, int] = {}  # top bits that all keys of a segment share
        self._shift = KEY_BITS
        self._starts = np.zeros(0, np.intp)  # first rows of the directory's segments, if not stale

    @property
    def segments(self) -> list[int]:
        """The segments it has, each once."""
        return list(self._depths)

    def find(self, key: int) -> int:
        """Return the row of ``key``, dead or alive; `ABSENT` if there is none."""
        directory = self._directory
        if not directory:
            return ABSENT
        keys, within = self._keys, self._within
        start = directory[key >> self._shift] * (within + 1)
        offset = (key >> HOME) & within
        while (found := keys[start + offset]) != key:
            if not found:
                return ABSENT
            offset = (offset + 1) & within
        return start + offset

    def put(self, key: int) -> int:
        """Return the row of ``key``, a dead one if it is new; `ABSENT` if there is no room for it.

        Rows returned before may have moved.
        """
        directory = self._directory
        if not directory and not self._begin():
            return ABSENT
        keys, within = self._keys, self._within
        segment = directory[key >> self._shift]
        start = segment * (within + 1)
        offset = (key >> HOME) & within
        while (found := keys[start + offset]) != key:
            if not found:
                break
            offset = (offset + 1) & within
        else:
            return start + offset
        if self._slab.taken[segment] >= self._full:
            return self.put(key) if self._make_room(segment, key) else ABSENT
        self._slab.taken[segment] += 1
        keys[start + offset] = key
        return start + offset

    def find_each(self, keys: Iterable[int]) -> Iterator[int]:
        """Yield what `find` returns for each key: cheaper than arrays where few are looked for."""
        directory = self._directory
        if not directory:
            yield from repeat(ABSENT, sum(1 for _ in keys))
            return
        rows, within, shift = self._keys, self._within, self._shift
        size = within + 1
        for key in keys:
            offset = (key >> HOME) & within
            start = directory[key >> shift] * size
            while (found := rows[start + offset]) != key:
                if not found:
                    yield ABSENT
                    break
                offset = (offset + 1) & within
            else:
                yield start + offset

    def put_each(self, keys: Iterable[int]) -> Iterator[int]:
        """Yield what `put` returns for each key; it is to be written before the next is asked for.

        A row that stays dead may be given to another key.
        """
        if not self._directory and not self._begin():
            yield from repeat(ABSENT, sum(1 for _ in keys))
            return
        rows, within, taken, full = self._keys, self._within, self._slab.taken, self._full
        size = within + 1
        for key in keys:
            # A directory that grew is another list, so it is asked for each time.
            segment = self._directory[key >> self._shift]
            start = segment * size
            offset = (key >> HOME) & within
            while (found := rows[start + offset]) != key:
                if not found:
                    if taken[segment] < full:
                        taken[segment] += 1
                        rows[start + offset] = key
                        yield start + offset
                    else:
                        yield self.put(key)
                    break
                offset = (offset + 1) & within
            else:
                yield start + offset

    def find_many(self, keys: Keys) -> Rows:
        """Return the row of each key; where there is none, of an empty row."""
        slab, within = self._slab, self._within
        if not self._starts.size:
            self._starts = np.array(self._directory, np.intp) * slab.rows
        rows: Rows = ((keys >> _HOME) & np.uint64(within)).view(np.intp)
        # A shift by all 64 bits is undefined: a single segment is addressed by no bits.
        top = (keys >> np.uint64(self._shift)).view(np.intp) if self._depth else None
        rows += self._starts[0] if top is None else self._starts.take(top)
        found = slab.keys.take(rows)
        astray = ((found != keys) & (found != 0)).nonzero()[0]
        while astray.size > FEW:
            ahead = rows.take(astray)
            ahead = (ahead & ~within) | ((ahead + 1) & within)
            rows[astray] = ahead
            found = slab.keys.take(ahead)
            astray = astray[(found != keys.take(astray)) & (found != 0)]
        if astray.size:
            pairs = zip(keys.take(astray).tolist(), rows.take(astray).tolist(), strict=True)
            rows[astray] = [self._ahead(key, row) for key, row in pairs]
        return rows

    def _ahead(self, key: int, row: int) -> int:
        """Return the row of ``key``, which lies after ``row``; or the empty row before it."""
        keys, within = self._keys, self._within
        start, offset = row & ~within, (row + 1) & within
        while (found := keys[start + offset]) != key and found:
            offset = (offset + 1) & within
        return start + offset

    def drop(self, segment: int) -> None:
        """Give one of its segments back. After the first, nothing but this may be asked of it."""
        del self._depths[segment]
        self._slab.give_back(segment)
        self._directory.clear()

    def clear(self) -> None:
        """Give all segments back."""
        for segment in self._depths:
            self._slab.give_back(segment)
        self._directory.clear()
        self._depths.clear()
        self._shift, self._starts = KEY_BITS, np.zeros(0, np.intp)

    @property
    def _depth(self) -> int:
        return KEY_BITS - self._shift

    def __bool__(self) -> bool:
        return bool(self._directory)

    def _begin(self) -> bool:
        segment = self._slab.take()
        if segment == ABSENT:
            return False
        self._directory.append(segment)
        self._depths[segment] = 0
        return True

    def _make_room(self, segment: int, key: int) -> bool:
        """Rid a full segment of its dead rows, or split it; False if neither helps."""
        slab = self._slab
        rows = slab.alive(segment)
        keys = slab.keys[rows]
        kept = [column[rows] for column in slab.columns]
        crowded = len(rows) >= slab.rows * CROWDED
        fresh = slab.take() if crowded and self._depths[segment] < MAX_DEPTH else ABSENT
        if fresh == ABSENT and len(rows) >= self._full:
            return False
        slab.wipe(segment)
        if fresh == ABSENT:
            self._fill(segment, keys, kept)
            return True
        bit = np.uint64(1 << (KEY_BITS - 1 - self._depths[segment]))
        upper = (keys & bit) != 0
        self._enter(segment, fresh, key)
        self._fill(segment, keys[~upper], [column[~upper] for column in kept])
        self._fill(fresh, keys[upper], [column[upper] for column in kept])
        return True

    def _enter(self, segment: int, fresh: int, key: int) -> None:
        """Let ``fresh`` have the upper half of ``segment``'s keys, of which ``key`` is one."""
        depth = self._depths[segment]
        if depth == self._depth:
            self._directory = [each for each in self._directory for _ in (0, 1)]
            self._shift -= 1
        width = 1 << (self._depth - depth)
        start = (key >> self._shift) // width * width
        self._directory[start + width // 2 : start + width] = [fresh] * (width // 2)
        self._depths[segment] = self._depths[fresh] = depth + 1
        self._starts = np.zeros(0, np.intp)

    def _fill(self, segment: int, keys: Keys, columns: Sequence[NDArray[np.generic]]) -> None:
        """Lay rows into an empty segment, as if put one by one."""
        slab, count = self._slab, len(keys)
        homes = (keys >> np.uint64(HOME)).astype(np.intp) & self._within
        order = np.argsort(homes, kind="stable")
        steps = np.arange(count)
        # In order of their homes, a row lies at its home or right after the one before it.
        offsets = np.maximum.accumulate(homes[order] - steps) + steps
        beyond = offsets >= slab.rows
        if beyond.any():  # these go round to the segment's start, into what is free there
            free = np.setdiff1d(np.arange(slab.rows), offsets[~beyond], assume_unique=True)
            offsets[beyond] = free[: int(beyond.sum())]
        rows = offsets + segment * slab.rows
        slab.keys[rows] = keys[order]
        for column, values in zip(slab.columns, columns, strict=True):
            column[rows] = values[order]
        slab.taken[segment] = count
