"""The index of what engines told, where an engine's blocks are of another size than the index's.

The model knows of each block of the index which of the engine's it lies in. It is held once the last
of them is told while all others are held, and until one of them is gone.
"""

from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from epp.prefix.exact.events import Removed, Stored
from epp.prefix.exact.keys import Prompt
from tests.support.kv import A, held, index, packed

OURS = 16  #: tokens of the index's blocks
LONGEST = ["000000", "000100", "010000", "011011"]
STARTS = st.sampled_from(sorted({path[:end] for path in LONGEST for end in range(1, 7)}))


class PiecesMachine(RuleBasedStateMachine):
    size = 8  #: tokens of the engine's blocks

    def __init__(self) -> None:
        super().__init__()
        self.index = index(A, block_tokens=OURS)
        self.copies: Counter[str] = Counter()
        self.seen = {""}
        self.shown: set[tuple[str, int]] = set()  #: path to the last piece, number of our block

    def tokens(self, path: str, first: int = 0) -> bytes:
        return packed([int(digit) + 7 for digit in path[first:] for _ in range(self.size)])

    def pieces(self, path: str, block: int) -> list[str]:
        """Return the engine's blocks, on the way to ``path``, in which one of ours lies."""
        first, last = block * OURS // self.size, (block * OURS + OURS - 1) // self.size
        return [path[: at + 1] for at in range(first, last + 1)]

    def ends(self, path: str) -> list[int]:
        """Return our blocks that end in the last of ``path``'s."""
        return list(range((len(path) - 1) * self.size // OURS, len(path) * self.size // OURS))

    @rule(path=STARTS, start=st.integers(0, 5))
    def store(self, path: str, start: int) -> None:
        start = min(start, len(path) - 1)
        while path[:start] not in self.seen:
            start -= 1
        blocks = [path[:end] for end in range(start + 1, len(path) + 1)]
        parent = int(f"1{path[:start]}", 2) if start else None
        hashes = tuple(int(f"1{each}", 2) for each in blocks)
        self.index.apply(A, [Stored(hashes, parent, self.tokens(path, start), self.size)])
        for each in blocks:
            self.seen.add(each)
            self.copies[each] += 1
            for number in self.ends(each):
                if all(self.copies[piece] for piece in self.pieces(each, number)):
                    self.shown.add((each, number))

    @rule(path=STARTS)
    def remove(self, path: str) -> None:
        self.index.apply(A, [Removed((int(f"1{path}", 2),))])
        self.copies[path] = max(self.copies[path] - 1, 0)
        if not self.copies[path]:
            self.shown = {
                (end, number) for end, number in self.shown if path not in self.pieces(end, number)
            }

    @invariant()
    def it_matches_as_the_model_does(self) -> None:
        for path in LONGEST:
            leading = 0
            last = (leading * OURS + OURS - 1) // self.size + 1
            while last <= len(path) and (path[:last], leading) in self.shown:
                leading += 1
                last = (leading * OURS + OURS - 1) // self.size + 1
            assert held(self.index, Prompt(self.tokens(path), "")).get(A, 0) == leading


class QuartersMachine(PiecesMachine):
    size = 4


class AcrossMachine(PiecesMachine):
    size = 12


class LargerAcrossMachine(PiecesMachine):
    size = 24


class LargerMachine(PiecesMachine):
    size = 32


TestHalves = PiecesMachine.TestCase
TestQuarters = QuartersMachine.TestCase
TestAcross = AcrossMachine.TestCase
TestLargerAcross = LargerAcrossMachine.TestCase
TestLarger = LargerMachine.TestCase
for case in (TestHalves, TestQuarters, TestAcross, TestLargerAcross, TestLarger):
    case.settings = settings(max_examples=20, stateful_step_count=30, deadline=None)
del case
