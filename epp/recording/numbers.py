"""Numbers for blocks of prompts: which are the same is told, what they are is not.

No hash of a block is ever written. The blocks of a prompt get consecutive numbers from a random
start on, and a later prompt that begins with the same blocks gets the same numbers. That is all
that a cache needs to know, and it is short to write.

Whether two conversations said the same is told only of what at least ``least`` of them said: until
then each one's blocks have numbers of its own. Within a conversation repetition is always told.

Memory is bounded: of blocks that were not seen among the last ``most`` ones nothing is known, and
they get new numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

import msgspec

from epp.recording.record import Runs, shortened

_MIX = 0x9E3779B97F4A7C15  #: an odd constant near 2**64 / golden ratio: spreads small numbers
_WORD = 2**64 - 1

Value = TypeVar("Value")


class Recent(Generic[Value]):
    """A map that forgets what was not asked for among the last ``most`` new entries."""

    def __init__(self, most: int) -> None:
        self._half = max(most // 2, 1)
        self._young: dict[int, Value] = {}
        self._old: dict[int, Value] = {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def get(self, key: int) -> Value | None:
        """Return what is kept under ``key``."""
        found = self._young.get(key)
        if found is None and (found := self._old.pop(key, None)) is not None:
            self.put(key, found)
        return found

    def put(self, key: int, value: Value) -> None:
        """Keep ``value`` under ``key``."""
        if len(self._young) >= self._half:
            self._old, self._young = self._young, {}
        self._young[key] = value


SHARED = 3  #: conversations that hold a block, from which on it identifies none of them


class _Block(msgspec.Struct, gc=False):
    number: int
    holders: tuple[int, ...]  #: conversations that hold it; () once there are many


class Told(msgspec.Struct, frozen=True):
    """What is written of a prompt's blocks."""

    runs: Runs
    shared: int  #: leading blocks that are told to be shared with other conversations


class Numbers:
    """Gives numbers to blocks.

    Args:
        least: conversations that hold a block before that is told.
        start: the first number.
        most: blocks remembered.
    """

    def __init__(self, least: int, start: int, most: int = 250_000) -> None:
        self._least = least
        self._next = start
        self._blocks: Recent[_Block] = Recent(most)
        self._own: Recent[int] = Recent(most)  # numbers of one conversation's own, see `_private`

    def tell(self, chain: Sequence[int], conversation: int) -> Told:
        """Return the numbers of a prompt's blocks.

        Args:
            chain: 64-bit hashes of its blocks, each chained on the one before.
            conversation: a number of the conversation that it is of.
        """
        numbers: list[int] = []
        shared = 0
        for each in chain:
            block = self._blocks.get(each)
            if block is None:
                block = _Block(self._new(), (conversation,))
                self._blocks.put(each, block)
            elif block.holders and conversation not in block.holders:
                self._hold(block, conversation)
            told = not block.holders or len(block.holders) >= self._least
            shared += told and block.holders != (conversation,)
            if told or block.holders[0] == conversation:
                numbers.append(block.number)
            else:
                numbers.append(self._private(each, conversation))
        return Told(shortened(numbers), shared)

    def common(self, chain: Sequence[int]) -> int:
        """Return how many leading blocks many conversations hold."""
        for i, each in enumerate(chain):
            block = self._blocks.get(each)
            if block is None or len(block.holders) in range(1, SHARED):
                return i
        return len(chain)

    def _hold(self, block: _Block, conversation: int) -> None:
        block.holders = (*block.holders, conversation)
        if len(block.holders) >= max(self._least, SHARED):
            block.holders = ()

    def _private(self, block: int, conversation: int) -> int:
        """The number of a block that only this conversation is known to hold."""
        key = (block ^ (conversation * _MIX)) & _WORD
        number = self._own.get(key)
        if number is None:
            number = self._new()
            self._own.put(key, number)
        return number

    def _new(self) -> int:
        self._next += 1
        return self._next - 1
