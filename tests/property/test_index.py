"""The index against a model so naive that it is plainly right.

The model keeps, for every endpoint, a list of blocks by recency, and matches block by block.
Chains come from a small tree, so that they share beginnings and branch.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from epp.model import BlockHash, EndpointId
from epp.prefix.index import PrefixIndex

ENDPOINTS = st.sampled_from([EndpointId(name) for name in "abcde"])
# A block's hash stands for its whole prefix: digits of a path in a binary tree.
PATHS = st.text("01", max_size=7)


def chain(path: str) -> tuple[BlockHash, ...]:
    return tuple(BlockHash(int("1" + path[:length], 2)) for length in range(1, len(path) + 1))


class NaiveIndex:
    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.capacities: dict[EndpointId, int] = {}
        self.recent: dict[EndpointId, list[BlockHash]] = {}
        self.times: dict[tuple[EndpointId, BlockHash], float] = {}

    def room(self, endpoint: EndpointId) -> int:
        return self.capacities.get(endpoint, self.capacity)

    def learn(self, endpoint: EndpointId, blocks: tuple[BlockHash, ...], now: float) -> None:
        blocks = blocks[: self.room(endpoint)]
        self.times.update({(endpoint, block): now for block in blocks})
        held = [block for block in self.recent.get(endpoint, []) if block not in blocks]
        self.recent[endpoint] = held + list(reversed(blocks))
        self.shrink(endpoint)

    def set_capacity(self, endpoint: EndpointId, blocks: int) -> None:
        self.capacities[endpoint] = blocks
        self.shrink(endpoint)

    def distrust(self, endpoint: EndpointId, quarters: int, least: int) -> None:
        room = self.room(endpoint)
        left = min(room, len(self.recent.get(endpoint, []))) * (4 - quarters) // 4
        self.set_capacity(endpoint, left if left >= least else min(least, room))

    def touched(self, endpoint: EndpointId, block: BlockHash) -> float | None:
        return self.times[endpoint, block] if block in self.recent.get(endpoint, []) else None

    def shrink(self, endpoint: EndpointId) -> None:
        held = self.recent.get(endpoint, [])
        self.recent[endpoint] = held[max(len(held) - self.room(endpoint), 0) :]

    def forget(self, endpoint: EndpointId) -> None:
        self.recent.pop(endpoint, None)
        self.capacities.pop(endpoint, None)

    def look_up(self, blocks: tuple[BlockHash, ...]) -> dict[EndpointId, int]:
        found = {}
        for endpoint, held in self.recent.items():
            length = 0
            while length < len(blocks) and blocks[length] in held:
                length += 1
            if length:
                found[endpoint] = length
        return found


class IndexMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.index = PrefixIndex(capacity=12)
        self.naive = NaiveIndex(capacity=12)
        self.now = 0.0

    @rule(endpoint=ENDPOINTS, path=PATHS)
    def learn(self, endpoint: EndpointId, path: str) -> None:
        self.now += 1.0
        self.index.learn(endpoint, chain(path), self.now)
        self.naive.learn(endpoint, chain(path), self.now)

    @rule(endpoint=ENDPOINTS, quarters=st.integers(0, 4), least=st.integers(0, 8))
    def distrust(self, endpoint: EndpointId, quarters: int, least: int) -> None:
        believed = self.index.distrust(endpoint, quarters / 4, least)
        self.naive.distrust(endpoint, quarters, least)
        assert believed == self.index.capacity(endpoint) == self.naive.room(endpoint)

    @rule(endpoint=ENDPOINTS, path=PATHS)
    def touched(self, endpoint: EndpointId, path: str) -> None:
        for block in chain(path):
            assert self.index.touched(endpoint, block) == self.naive.touched(endpoint, block)

    @rule(endpoint=ENDPOINTS, path=PATHS, quarters=st.integers(0, 4))
    def what_was_just_learned_stays_whatever_is_distrusted(
        self, endpoint: EndpointId, path: str, quarters: int
    ) -> None:
        self.learn(endpoint, path)
        held = self.index.look_up(chain(path)).get(endpoint, 0)
        self.distrust(endpoint, quarters, len(path))
        assert self.index.look_up(chain(path)).get(endpoint, 0) == held

    @rule(endpoint=ENDPOINTS, blocks=st.integers(0, 20))
    def set_capacity(self, endpoint: EndpointId, blocks: int) -> None:
        self.index.set_capacity(endpoint, blocks)
        self.naive.set_capacity(endpoint, blocks)

    @rule(endpoint=ENDPOINTS)
    def forget(self, endpoint: EndpointId) -> None:
        self.index.forget(endpoint)
        self.naive.forget(endpoint)

    @rule(path=PATHS)
    def look_up(self, path: str) -> None:
        assert self.index.look_up(chain(path)) == self.naive.look_up(chain(path))

    @invariant()
    def sizes_agree(self) -> None:
        assert self.index.entries == sum(map(len, self.naive.recent.values()))

    @invariant()
    def a_held_block_has_its_parent_held(self) -> None:
        for held in self.naive.recent.values():
            assert all(block < 4 or block // 2 in held for block in held)


class TestIndex(IndexMachine.TestCase):  # type: ignore[misc]
    settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


class TightMachine(RuleBasedStateMachine):
    """A tight bound on all endpoints together: what is left is contiguous and within the bound."""

    BOUND = 30

    def __init__(self) -> None:
        super().__init__()
        self.index = PrefixIndex(capacity=20, max_entries=self.BOUND)
        self.wide = PrefixIndex(capacity=20)

    @rule(endpoint=ENDPOINTS, path=PATHS)
    def learn(self, endpoint: EndpointId, path: str) -> None:
        self.index.learn(endpoint, chain(path))
        self.wide.learn(endpoint, chain(path))

    @rule(endpoint=ENDPOINTS)
    def forget(self, endpoint: EndpointId) -> None:
        self.index.forget(endpoint)
        self.wide.forget(endpoint)

    @rule(path=PATHS)
    def never_claims_more_than_without_the_bound(self, path: str) -> None:
        wide = self.wide.look_up(chain(path))
        for endpoint, length in self.index.look_up(chain(path)).items():
            assert length <= wide[endpoint]

    @rule(path=PATHS)
    def bisecting_finds_what_counting_finds(self, path: str) -> None:
        blocks = chain(path)
        counted: dict[EndpointId, int] = {}
        for length in range(1, len(blocks) + 1):
            for endpoint in self.index.look_up(blocks[:length]):
                if self.index.look_up(blocks[:length])[endpoint] == length:
                    counted[endpoint] = length
        assert self.index.look_up(blocks) == counted

    @invariant()
    def the_bound_holds(self) -> None:
        assert self.index.entries <= self.BOUND


class TestTightIndex(TightMachine.TestCase):  # type: ignore[misc]
    settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
