"""The index of what engines told, against a model so naive that it is plainly right.

The model keeps, for every engine, how many copies of each block lie in each tier, and which blocks
it has ever seen the tokens of. A block counts once the way from the root to it is known. Events
come in any order, parents after their children included, and repeat. Engines are dropped and join
again long before what they held is swept, and the secret that names blocks changes: then less may be
found for a while, and never more.
"""

from __future__ import annotations

import struct
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from epp.model import EndpointId
from epp.prefix.exact import index
from epp.prefix.exact.events import Cleared, Event, Removed, Stored, Tier
from epp.prefix.exact.index import ExactIndex, Known
from epp.prefix.exact.keys import Keys, Prompt

BLOCK = 8  #: tokens
A, B = EndpointId("a"), EndpointId("b")
SOURCES = [(A, 0), (B, 0), (B, 1)]  # endpoints and ranks
ENGINES = st.sampled_from(SOURCES)
TIERS = st.sampled_from([Tier.GPU, Tier.GPU, Tier.GPU, Tier.CPU, Tier.CPU, Tier.DISK, Tier.SHARED])
# A block is named by its path in a binary tree: its tokens are the last digit, over and over.
# Few paths, so that the same blocks are stored, placed, removed and stored again.
PATHS = st.sampled_from(["0", "00", "01", "000", "010", "0101"])
ADAPTERS = st.sampled_from(["", "", "", "lora"])


def tokens(path: str) -> bytes:
    return b"".join(struct.pack("<I", int(digit) + 7) * BLOCK for digit in path)


def engines_hash(adapter: str, path: str) -> int:
    return int(f"1{path}", 2) + (1000 if adapter else 0)


Source = tuple[EndpointId, int]


class NaiveEngine:
    def __init__(self) -> None:
        self.copies: Counter[tuple[Tier, str, str]] = Counter()
        self.seen: set[tuple[str, str]] = set()
        self.renamed = False  #: since this engine told anything, new names come from another secret

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
        self.secrets = [b"0"]
        self.index = ExactIndex(Keys(self.secrets), block_tokens=BLOCK, most_bytes=4_000_000)
        self.naive = {source: NaiveEngine() for source in SOURCES}
        for name, rank in SOURCES:
            self.index.join(name, rank)

    def apply(self, source: Source, event: Event) -> None:
        self.index.apply(source[0], [event], rank=source[1])

    @rule(source=ENGINES, tier=TIERS, adapter=ADAPTERS, path=PATHS, start=st.integers(0, 4))
    def store(self, source: Source, tier: Tier, adapter: str, path: str, start: int) -> None:
        start = min(start, len(path) - 1)
        ends = range(start + 1, len(path) + 1)
        hashes = tuple(engines_hash(adapter, path[:end]) for end in ends)
        parent = engines_hash(adapter, path[:start]) if start else None
        self.apply(source, Stored(hashes, parent, tokens(path[start:]), BLOCK, tier, adapter))
        for end in ends:
            self.naive[source].copies[tier, adapter, path[:end]] += 1
            self.naive[source].seen.add((adapter, path[:end]))

    @rule(source=ENGINES, tier=TIERS, adapter=ADAPTERS, path=PATHS)
    def place(self, source: Source, tier: Tier, adapter: str, path: str) -> None:
        self.apply(source, Stored((engines_hash(adapter, path),), None, b"", 0, tier))
        self.naive[source].copies[tier, adapter, path] += 1

    @rule(source=ENGINES, tier=TIERS, adapter=ADAPTERS, path=PATHS)
    def remove(self, source: Source, tier: Tier, adapter: str, path: str) -> None:
        self.apply(source, Removed((engines_hash(adapter, path),), tier))
        copies = self.naive[source].copies
        copies[tier, adapter, path] = max(copies[tier, adapter, path] - 1, 0)

    @rule(source=ENGINES)
    def clear(self, source: Source) -> None:
        self.apply(source, Cleared())
        self.naive[source] = NaiveEngine()

    @rule(source=ENGINES)
    def restart(self, source: Source) -> None:
        self.index.join(*source)
        self.naive[source] = NaiveEngine()

    @rule()
    def replace(self) -> None:
        self.index.forget(B)
        for rank in (0, 1):  # too late: it is gone
            self.index.apply(B, [Stored((3,), None, tokens("0"), BLOCK), Removed((2,))], rank=rank)
            self.index.join(B, rank)
            self.naive[B, rank] = NaiveEngine()

    def found(self) -> list[dict[EndpointId, int]]:
        asked = [
            Prompt(tokens(path), adapter) for path in ("000", "0101") for adapter in ("", "lora")
        ]
        return [dict(self.index.look_up(each).blocks) for each in asked]

    @rule(stay=st.integers(0, 2))
    def rotate(self, stay: int) -> None:
        before, all_stay = self.found(), stay >= len(self.secrets)
        self.secrets = [b"%d" % (int(self.secrets[0]) + 1), *self.secrets[:stay]]
        self.index.rotate(Keys(self.secrets))
        assert self.found() == before or not all_stay
        for engine in self.naive.values():
            engine.renamed = bool(engine.copies)

    @rule(segments=st.integers(1, 3))
    def sweep(self, segments: int) -> None:
        self.index.sweep(segments)

    @invariant()
    def it_matches_as_the_model_does(self) -> None:
        for adapter in ("", "lora"):
            for path in ("0000", "0101"):
                known = self.index.look_up(Prompt(tokens(path) + b"tail", adapter))
                self.check(known, {each: engine.leading(adapter, path)
                                   for each, engine in self.naive.items()})  # fmt: skip

    def check(self, known: Known, told: dict[Source, tuple[int, list[Tier]]]) -> None:
        for name in (A, B):
            most = max(blocks for (owner, _), (blocks, _) in told.items() if owner == name)
            found = known.blocks.get(name, 0)
            source = (name, known.ranks.get(name, 0))
            blocks, tiers = told[source]
            assert found <= blocks
            if any(self.naive[each].renamed for each in SOURCES if each[0] == name):
                continue
            assert found == most
            counted = known.lower.get(name, (blocks, 0, 0, 0, 0))
            assert not found or counted == tuple(tiers.count(tier) for tier in Tier)

    @invariant()
    def it_counts_what_it_holds(self) -> None:
        held = {
            (adapter, path)
            for engine in self.naive.values()
            for tier, adapter, path in +engine.copies
            if engine.holds(tier, adapter, path)
        }
        if not self.index.sweeping and not any(each.renamed for each in self.naive.values()):
            assert self.index.figures()["blocks"] == len(held)


@pytest.fixture(autouse=True, name="sweeps_late")
def _sweeps_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "SWEEP", 0)  # what was dropped stays until a step of its own


TestExactIndex = IndexMachine.TestCase
TestExactIndex.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
