"""The index of what engines told, against a model so naive that it is plainly right.

The model keeps, for every engine, how many copies of each block lie in each tier, and which blocks
it has ever seen the tokens of. A block counts once the way from the root to it is known. Events
come in any order, parents after their children included, and repeat.
"""

from __future__ import annotations

import struct
from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from epp.model import EndpointId
from epp.prefix.exact.events import Cleared, Removed, Stored, Tier
from epp.prefix.exact.index import ExactIndex
from epp.prefix.exact.keys import Keys, Prompt

BLOCK = 8  #: tokens
NAMES = [EndpointId(name) for name in "ab"]
ENGINES = st.sampled_from(NAMES)
TIERS = st.sampled_from([Tier.GPU, Tier.GPU, Tier.CPU])
# A block is named by its path in a binary tree: its tokens are the last digit, over and over.
# Few paths, so that the same blocks are stored, placed, removed and stored again.
PATHS = st.sampled_from(["0", "00", "01", "000", "010", "0101"])
ADAPTERS = st.sampled_from(["", "", "", "lora"])


def tokens(path: str) -> bytes:
    return b"".join(struct.pack("<I", int(digit) + 7) * BLOCK for digit in path)


def engines_hash(adapter: str, path: str) -> int:
    return int(f"1{path}", 2) + (1000 if adapter else 0)


class NaiveEngine:
    def __init__(self) -> None:
        self.copies: Counter[tuple[Tier, str, str]] = Counter()
        self.seen: set[tuple[str, str]] = set()

    def holds(self, tier: Tier, adapter: str, path: str) -> bool:
        known = all((adapter, path[:end]) in self.seen for end in range(1, len(path) + 1))
        return known and self.copies[tier, adapter, path] > 0

    def leading(self, adapter: str, path: str) -> tuple[int, list[Tier]]:
        tiers = []
        for end in range(1, len(path) + 1):
            here = [tier for tier in Tier if self.holds(tier, adapter, path[:end])]
            if not here:
                break
            tiers.append(here[0])
        return len(tiers), tiers


class IndexMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.index = ExactIndex(Keys((b"secret",)), block_tokens=BLOCK, most_bytes=4_000_000)
        self.naive = {name: NaiveEngine() for name in NAMES}
        for name in NAMES:
            self.index.join(name)

    @rule(name=ENGINES, tier=TIERS, adapter=ADAPTERS, path=PATHS, start=st.integers(0, 4))
    def store(self, name: EndpointId, tier: Tier, adapter: str, path: str, start: int) -> None:
        start = min(start, len(path) - 1)
        ends = range(start + 1, len(path) + 1)
        hashes = tuple(engines_hash(adapter, path[:end]) for end in ends)
        parent = engines_hash(adapter, path[:start]) if start else None
        event = Stored(hashes, parent, tokens(path[start:]), BLOCK, tier, adapter)
        self.index.apply(name, [event])
        for end in ends:
            self.naive[name].copies[tier, adapter, path[:end]] += 1
            self.naive[name].seen.add((adapter, path[:end]))

    @rule(name=ENGINES, tier=TIERS, adapter=ADAPTERS, path=PATHS)
    def place(self, name: EndpointId, tier: Tier, adapter: str, path: str) -> None:
        event = Stored((engines_hash(adapter, path),), None, b"", 0, tier)
        self.index.apply(name, [event])
        self.naive[name].copies[tier, adapter, path] += 1

    @rule(name=ENGINES, tier=TIERS, adapter=ADAPTERS, path=PATHS)
    def remove(self, name: EndpointId, tier: Tier, adapter: str, path: str) -> None:
        self.index.apply(name, [Removed((engines_hash(adapter, path),), tier)])
        copies = self.naive[name].copies
        copies[tier, adapter, path] = max(copies[tier, adapter, path] - 1, 0)

    @rule(name=ENGINES)
    def clear(self, name: EndpointId) -> None:
        self.index.apply(name, [Cleared()])
        self.naive[name] = NaiveEngine()

    @rule(name=ENGINES)
    def replace(self, name: EndpointId) -> None:
        self.index.forget(name)
        self.index.apply(name, [Stored((3,), None, tokens("0"), BLOCK)])  # too late: it is gone
        self.index.join(name)
        self.naive[name] = NaiveEngine()

    @rule()
    def sweep(self) -> None:
        self.index.sweep(8)

    @invariant()
    def it_matches_as_the_model_does(self) -> None:
        for adapter in ("", "lora"):
            for path in ("0000", "0101"):
                known = self.index.look_up(Prompt(tokens(path) + b"tail", adapter))
                for name in NAMES:
                    blocks, tiers = self.naive[name].leading(adapter, path)
                    assert known.blocks.get(name, 0) == blocks
                    counted = known.lower.get(name, (blocks, 0, 0, 0, 0))
                    assert counted == tuple(tiers.count(tier) for tier in Tier)

    @invariant()
    def it_counts_what_it_holds(self) -> None:
        held = {
            (adapter, path)
            for engine in self.naive.values()
            for tier, adapter, path in +engine.copies
            if engine.holds(tier, adapter, path)
        }
        if not self.index.sweeping:
            assert self.index.figures()["blocks"] == len(held)


TestExactIndex = IndexMachine.TestCase
TestExactIndex.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
