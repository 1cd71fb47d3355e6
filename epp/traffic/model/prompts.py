"""The blocks of made-up prompts: which new one begins like which earlier one. Pure.

Prompts are runs of block numbers, so that a prompt of 100,000 tokens costs no more than one of 100.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from epp.recording.record import Runs

LOOKED_AT = 200  #: earlier requests looked at for the one that fits best
YOUNGER = 2.0  #: misfit of a beginning that others have used since
SHORT = 8.0  #: misfit of a prompt that has nothing of what is wanted


class Prompt(msgspec.Struct, frozen=True):
    """One prompt."""

    runs: Runs
    tokens: int


class Prompts:
    """Makes prompts out of earlier ones and new blocks; remembers them in order.

    Args:
        block_tokens: tokens per block. The last block of a prompt, if it is not full, is new.
    """

    def __init__(self, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self._next = 0
        self._made: list[tuple[int, Prompt]] = []  # with the number of its class
        # First block of a run -> uses of its beginning: index of the prompt and how many blocks.
        # A use that a later one covers is dropped, so indices rise and counts fall.
        self._used: dict[int, list[tuple[int, int]]] = {}

    def add(self, of: int, prompt: Prompt) -> None:
        """Remember that a request of class ``of`` was made with ``prompt``."""
        for first, count in prompt.runs:
            uses = self._used.setdefault(first, [])
            while uses and uses[-1][1] <= count:
                uses.pop()
            uses.append((len(self._made), count))
        self._made.append((of, prompt))

    def new(self, tokens: int) -> Runs:
        """Return new blocks for ``tokens`` tokens."""
        count = -(-tokens // self.block_tokens)
        self._next += count
        return ((self._next - count, count),) if count else ()

    def following(self, begin: Prompt | None, kept: int, fresh: int) -> Prompt:
        """Return a prompt that keeps the first ``kept`` tokens of ``begin``, then has new ones."""
        full = kept // self.block_tokens
        head = first_blocks(begin.runs, full) if begin else ()
        size = max(kept + fresh, 1)
        rest = max(size - full * self.block_tokens, 0)
        return Prompt(joined(head, self.new(rest)), size)

    def earlier(self, of: int, age: float, tokens: int) -> Prompt | None:
        """Return a prompt of class ``of`` whose first ``tokens`` were last used ``age`` requests ago.

        The one that fits best: long enough, last used then, and that as a whole. Where others have
        since used a part of it only, that part is younger than wanted.
        """
        middle = len(self._made) - max(round(age), 1)
        best, found = math.inf, None
        for i in _around(middle, len(self._made)):
            other, prompt = self._made[i]
            if other == of and (misfit := self._misfit(prompt, i, age, tokens)) < best:
                best, found = misfit, prompt
        return found

    def _misfit(self, prompt: Prompt, index: int, age: float, tokens: int) -> float:
        """How far ``prompt`` is from what `earlier` wants; 0.0 is all of it."""
        blocks = min(tokens, prompt.tokens) // self.block_tokens
        last, younger = self._uses(prompt.runs, blocks, index)
        short = max(tokens - prompt.tokens, 0) / max(tokens, 1)
        return (
            abs(math.log((len(self._made) - last) / max(age, 1.0)))
            + YOUNGER * younger / max(blocks, 1)
            + SHORT * short
        )

    def _uses(self, runs: Runs, blocks: int, index: int) -> tuple[int, int]:
        """Tell who used the first ``blocks`` blocks of the prompt at ``index``.

        Returns:
            The index of the last prompt that used them all, and how many of them one later than
            ``index`` did that did not use them all.
        """
        last, younger, begin = index, 0, 0
        for first, size in runs:
            wanted = min(size, blocks - begin)
            if wanted <= 0:
                break
            ends = begin + size >= blocks
            for at, count in reversed(self._used[first]):
                if at <= index:
                    break
                younger = max(younger, begin + min(count, wanted))
                if ends and count >= wanted:
                    last = at
                    break
            begin += size
        return last, younger if last == index else blocks


def _around(middle: int, count: int) -> Sequence[int]:
    """Indices near ``middle``, the nearest first."""
    middle = min(max(middle, 0), count - 1)
    near = range(max(middle - LOOKED_AT // 2, 0), min(middle + LOOKED_AT // 2, count))
    return sorted(near, key=lambda i: abs(i - middle))


def first_blocks(runs: Runs, count: int) -> Runs:
    """Return the first ``count`` blocks, or all there are."""
    found: list[tuple[int, int]] = []
    for first, size in runs:
        if count <= 0:
            break
        found.append((first, min(size, count)))
        count -= size
    return tuple(found)


def joined(head: Runs, tail: Runs) -> Runs:
    """Return the blocks of ``head``, then those of ``tail``."""
    if head and tail and head[-1][0] + head[-1][1] == tail[0][0]:
        return (*head[:-1], (head[-1][0], head[-1][1] + tail[0][1]), *tail[1:])
    return head + tail
