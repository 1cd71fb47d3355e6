"""What the knowledge of all engines' blocks shares: the index, the rows, secrets, room and counts."""

from __future__ import annotations

from epp.prefix.exact.expected import Tries
from epp.prefix.exact.held import Blocks
from epp.prefix.exact.keys import Keys
from epp.prefix.exact.table import Slab
from epp.prefix.exact.waiting import Room


class Shelf:
    """What all engines share.

    Args:
        blocks: who holds what.
        segments: rows for all engines' hashes, a hard bound.
        keys: secrets that name blocks.
        block_tokens: tokens of a block of ours.
        room: for blocks that wait for their parent.
    """

    def __init__(
        self, blocks: Blocks, segments: Slab, *, keys: Keys, block_tokens: int, room: Room
    ) -> None:
        self.blocks = blocks
        self.segments = segments
        self.keys = keys
        self.block_tokens = block_tokens
        self.room = room
        self.tries = Tries()
        self.stored = 0  #: copies of blocks, ever
        self.removed = 0  #: copies of blocks, ever
        self.refused = 0  #: blocks that there was no room for, ever
        self.mended = 0  #: parents that were found out by what was expected, ever
        self.uneven = 0  #: events whose tokens do not fill their blocks, ever
