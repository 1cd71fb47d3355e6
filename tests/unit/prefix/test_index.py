"""Sizes, bounds and churn of the prefix index; what it answers is in tests/property."""

from __future__ import annotations

import time

import pytest

from epp.model import BlockHash, EndpointId
from epp.prefix.index import PrefixIndex

A, B = EndpointId("a"), EndpointId("b")


def chain(start: int, length: int) -> tuple[BlockHash, ...]:
    return tuple(BlockHash(start * 1_000_003 + i) for i in range(length))


def test_an_empty_index_and_an_empty_prompt_match_nothing():
    index = PrefixIndex(10)
    assert index.look_up(chain(1, 5)) == {}
    index.learn(A, chain(1, 5))
    assert index.look_up(()) == {}


def test_each_endpoint_matches_as_far_as_it_was_taught():
    index = PrefixIndex(100)
    index.learn(A, chain(1, 3))
    index.learn(B, chain(1, 40))
    assert index.look_up(chain(1, 50)) == {A: 3, B: 40}
    assert index.look_up(chain(1, 2)) == {A: 2, B: 2}
    assert index.look_up(chain(2, 50)) == {}


def test_many_endpoints_of_different_depths_are_told_apart():
    index = PrefixIndex(100)
    for depth in range(1, 65):
        index.learn(EndpointId(f"e{depth}"), chain(1, depth))
    assert index.look_up(chain(1, 64)) == {EndpointId(f"e{d}"): d for d in range(1, 65)}


def test_eviction_takes_the_leaves_of_the_oldest_prompt_first():
    index = PrefixIndex(10)
    index.learn(A, chain(1, 6))
    index.learn(A, chain(2, 6))
    assert index.look_up(chain(1, 6)) == {A: 4}
    assert index.look_up(chain(2, 6)) == {A: 6}


def test_a_pick_refreshes_what_it_used():
    index = PrefixIndex(10)
    index.learn(A, chain(1, 5))
    index.learn(A, chain(2, 5))
    index.learn(A, chain(1, 5))
    index.learn(A, chain(3, 5))
    assert index.look_up(chain(1, 5)) == {A: 5}
    assert index.look_up(chain(2, 5)) == {}


def test_a_chain_longer_than_the_capacity_keeps_its_beginning():
    index = PrefixIndex(4)
    index.learn(A, chain(1, 9))
    assert index.look_up(chain(1, 9)) == {A: 4}
    assert index.entries == 4


def test_a_smaller_capacity_evicts_at_once_and_a_larger_one_is_used():
    index = PrefixIndex(10)
    index.learn(A, chain(1, 10))
    index.set_capacity(A, 3)
    assert (index.held(A), index.entries) == (3, 3)
    assert index.look_up(chain(1, 10)) == {A: 3}
    index.set_capacity(A, 20)
    index.learn(A, chain(2, 17))
    assert index.held(A) == 20


def test_a_capacity_of_nothing_learns_nothing():
    index = PrefixIndex(10)
    index.set_capacity(A, 0)
    index.learn(A, chain(1, 3))
    assert (index.entries, index.endpoints, index.look_up(chain(1, 3))) == (0, 0, {})


def test_a_forgotten_endpoint_matches_nothing_although_its_entries_wait_to_be_swept():
    index = PrefixIndex(100_000)
    index.learn(A, chain(1, 5000))
    index.learn(B, chain(1, 10))
    index.forget(A)
    assert index.blocks > 10  # not all swept yet
    assert index.look_up(chain(1, 5000)) == {B: 10}
    assert index.entries == 10


def test_an_endpoint_that_comes_back_starts_with_nothing():
    index = PrefixIndex(100)
    index.learn(A, chain(1, 10))
    index.set_capacity(A, 50)
    index.forget(A)
    assert index.capacity(A) == 100
    index.learn(A, chain(2, 1))
    assert index.look_up(chain(1, 10)) == {}


def test_a_bit_is_not_used_again_before_it_is_swept():
    index = PrefixIndex(100_000)
    index.learn(A, chain(1, 5000))
    index.forget(A)
    for i in range(40):
        newcomer = EndpointId(f"n{i}")
        index.learn(newcomer, chain(100 + i, 5))
        assert newcomer not in index.look_up(chain(1, 5000))


def test_forgetting_an_unknown_endpoint_is_no_error():
    index = PrefixIndex(10)
    index.forget(A)
    assert index.entries == 0


def test_all_that_was_learned_is_gone_after_all_are_forgotten_and_swept():
    index = PrefixIndex(100_000)
    for name in (A, B):
        index.learn(name, chain(1, 3000))
        index.forget(name)
    index.sweep(10_000)
    assert (index.entries, index.blocks, index.endpoints, index.bytes) == (0, 0, 0, 0)


def test_when_memory_is_full_the_largest_give_way_and_the_small_keep_theirs():
    index = PrefixIndex(1000, max_entries=100)
    index.learn(B, chain(9, 20))
    for i in range(30):
        index.learn(A, chain(i, 10))
    assert index.entries == 100
    assert index.look_up(chain(9, 20)) == {B: 20}
    assert index.look_up(chain(29, 10)) == {A: 10}


@pytest.mark.parametrize(("endpoints", "blocks"), [(2, 2048), (500, 2048)])
def test_a_look_up_reads_few_blocks_however_many_endpoints_there_are(endpoints: int, blocks: int):
    class Counted(tuple[BlockHash, ...]):
        __slots__ = ()
        reads = 0

        def __getitem__(self, i):  # type: ignore[no-untyped-def]
            Counted.reads += 1
            return super().__getitem__(i)

    index = PrefixIndex(10_000, max_entries=10**7)
    for i in range(endpoints):
        index.learn(EndpointId(f"e{i}"), chain(1, blocks // 8))
    index.learn(EndpointId("e0"), chain(1, blocks))
    assert len(index.look_up(Counted(chain(1, blocks)))) == endpoints
    assert Counted.reads <= 40  # two different lengths, 11 halvings each


def test_a_look_up_of_2048_blocks_over_1000_endpoints_takes_less_than_5_ms():
    index = PrefixIndex(10_000, max_entries=10**7)
    for i in range(1000):
        index.learn(EndpointId(f"e{i}"), chain(1, 1 + i * 2))
    whole = chain(1, 2048)
    times = []
    for _ in range(20):
        start = time.perf_counter()
        index.look_up(whole)
        times.append(time.perf_counter() - start)
    assert min(times) < 0.005
