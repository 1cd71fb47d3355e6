"""Block hashes and block accounts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.sim.cache import BlockCache, block_hashes, root

IDS = np.arange(100, 140, dtype=np.uint32)


def test_only_full_blocks_have_a_hash() -> None:
    assert [len(block_hashes(IDS[:n], 16)) for n in (0, 15, 16, 31, 32, 40)] == [0, 0, 1, 1, 2, 2]


def test_the_hashes_of_a_prefix_are_the_prefix_of_the_hashes() -> None:
    assert block_hashes(IDS[:32], 8) == block_hashes(IDS, 8)[:4]


def test_a_changed_token_changes_its_block_and_all_after_it() -> None:
    other = IDS.copy()
    other[9] += 1
    same = [a == b for a, b in zip(block_hashes(IDS, 8), block_hashes(other, 8), strict=True)]
    assert same == [True, False, False, False, False]


def test_order_matters_within_a_block() -> None:
    assert block_hashes(IDS[:16], 16) != block_hashes(IDS[15::-1], 16)


def test_equal_blocks_in_different_places_differ() -> None:
    assert len(set(block_hashes(np.full(64, 7, dtype=np.uint32), 16))) == 4


def test_adapter_and_salt_are_in_the_root() -> None:
    roots = [
        root(),
        root(adapter="a"),
        root(salt="a"),
        root(adapter="a", salt="b"),
        root(adapter="ab"),
    ]
    assert len({block_hashes(IDS, 16, each)[0] for each in roots}) == 5


def test_hashes_fit_in_64_bits_and_do_not_collide_by_accident() -> None:
    prompts = np.random.default_rng(1).integers(0, 1000, (2000, 16), dtype=np.uint32)
    hashes = {block_hashes(ids, 16)[0] for ids in prompts}
    assert len(hashes) == 2000
    assert max(hashes) < 2**64


def test_taking_too_much_changes_nothing() -> None:
    cache = BlockCache(3)
    assert cache.take(2)
    assert not cache.take(2)
    assert (cache.private, cache.available) == (2, 1)


def test_a_duplicate_stays_private() -> None:
    cache = BlockCache(3)
    assert cache.take(2)
    assert (cache.seal([1]), cache.seal([1])) == ([0], [])
    assert (cache.private, cache.used) == (1, 2)
    cache.release([1], 1)
    assert (cache.used, cache.known) == (0, 1)


def test_a_block_that_comes_twice_is_known_once() -> None:
    cache = BlockCache(4)
    assert cache.take(4)
    assert cache.seal([7, 8, 7, 9]) == [0, 1, 3]
    assert (cache.private, cache.used, cache.known) == (1, 4, 3)


def test_the_journal_tells_what_is_removed() -> None:
    cache = BlockCache(2, journal=True)
    assert cache.take(2)
    assert cache.seal([1, 2]) == [0, 1]
    cache.release([1, 2], 0)
    assert cache.take(1)
    assert cache.removed == [2]  # the tail goes first
    cache.clear()
    assert (cache.removed, cache.known) == ([2, 1], 0)


class Naive:
    """The same accounts with one object per block and a list for the order of idle ones."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.uses: dict[int, int] = {}
        self.idle: list[int] = []
        self.private = 0

    def room(self) -> int:
        return self.capacity - self.private - len(self.uses)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 4)), max_size=40))
def test_the_accounts_agree_with_a_naive_model(prompts: list[tuple[int, int]]) -> None:
    """Each prompt takes its blocks, seals them, and the one two before it is released."""
    cache, naive = BlockCache(8), Naive(8)
    under_way: list[list[int]] = []
    for family, length in prompts:
        blocks = [family * 10 + place for place in range(length)]
        hits = blocks[: cache.match(blocks, length)]
        known = naive.uses.keys() | set(naive.idle)
        assert hits == blocks[: next((i for i, b in enumerate(blocks) if b not in known), length)]
        fresh = length - len(hits)
        fits = fresh + sum(b in naive.idle for b in hits) <= naive.room()
        assert cache.fits(hits, fresh) == fits
        if fits and not any(b in known for b in blocks[len(hits) :]):
            _take(cache, naive, blocks, hits)
            under_way.append(blocks)
        if len(under_way) > 2 or (under_way and not fits):
            _release(cache, naive, under_way.pop(0))
        assert cache.used == naive.private + len(naive.uses)
        assert cache.known == len(naive.uses) + len(naive.idle)


def _take(cache: BlockCache, naive: Naive, blocks: list[int], hits: list[int]) -> None:
    cache.hold(hits)
    assert cache.take(len(blocks) - len(hits))
    for block in hits:
        if block in naive.idle:
            naive.idle.remove(block)
    fresh = blocks[len(hits) :]
    assert cache.seal(fresh) == list(range(len(fresh)))
    for block in blocks:
        naive.uses[block] = naive.uses.get(block, 0) + 1
    while len(naive.uses) + len(naive.idle) > naive.capacity:
        naive.idle.pop(0)


def _release(cache: BlockCache, naive: Naive, blocks: list[int]) -> None:
    cache.release(blocks, 0)
    for block in reversed(blocks):
        naive.uses[block] -= 1
        if not naive.uses[block]:
            del naive.uses[block]
            naive.idle.append(block)


def test_a_cache_of_nothing_matches_nothing() -> None:
    cache = BlockCache(4)
    assert cache.match([1, 2], 5) == 0
    assert cache.match([], 5) == 0


@pytest.mark.parametrize(("limit", "found"), [(0, 0), (1, 1), (2, 2), (9, 2)])
def test_a_match_is_never_longer_than_the_limit(limit: int, found: int) -> None:
    cache = BlockCache(4)
    assert cache.take(2)
    assert cache.seal([1, 2]) == [0, 1]
    assert cache.match([1, 2, 3], limit) == found
