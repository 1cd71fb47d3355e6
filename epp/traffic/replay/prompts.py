"""Made-up prompts with exactly the blocks of a trace's. Pure.

A block's text depends on its id and the seed alone, so prompts are equal as far as their ids are,
and differ from the next block on. Words have three letters and a space: four bytes, which is what
`epp` counts as one token, and one token of nearly every model's vocabulary. As token ids, for
engines that take them, lengths are exact.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Literal

from epp.recording.record import Record
from epp.traffic.trace import full_blocks

As = Literal["text", "tokens"]
Prompt = str | list[int]

WORDS = tuple(
    "the and for are but not you all any can her was one our out day get has him his how man new "
    "now old see two way who boy did its let put say she too use far sea run eye air ask big box "
    "bus car cat cow cup cut dog dry ear eat egg end few fly fun gas hot ice".split()
)
FIRST_ID, IDS = 1000, 20_000  #: token ids that every model has, and that mean nothing special
BLOCKS = 8192  #: made lately and kept


class Prompts:
    """Makes the prompts of one trace.

    Args:
        block_tokens: of the trace.
        seed: another one shares nothing, so that a second run does not find the first one's cache.
        kind: text, or token ids.
    """

    def __init__(self, block_tokens: int, seed: int, kind: As) -> None:
        self._tokens = block_tokens
        self._seed = seed
        self._kind = kind
        self._block: Callable[[str, int], tuple[int, ...]] = lru_cache(BLOCKS)(self._draw)

    def of(self, record: Record, name: str) -> Prompt:
        """Return the prompt of ``record``; ``name`` tells its unshared rest from all others'.

        It has at least one token: engines refuse prompts of none.
        """
        parts: list[int] = []
        blocks = full_blocks(record, self._tokens)
        for each in blocks:
            parts += self._block(f"b{each}", self._tokens)
        rest = max(record.input_tokens, 1) - len(parts)
        parts += self._draw(f"r{name}", rest)
        if self._kind == "tokens":
            return [FIRST_ID + each for each in parts]
        return _text(parts)

    def _draw(self, name: str, count: int) -> tuple[int, ...]:
        draw = random.Random(f"{self._seed}/{name}")
        most = IDS if self._kind == "tokens" else len(WORDS)
        return tuple(draw.choices(range(most), k=count))


def _text(words: Sequence[int]) -> str:
    return "".join([f"{WORDS[each]} " for each in words])
