"""Reuse distances, by hand and against a cache that is really kept."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.recording.record import Record, shortened
from epp.traffic.study.reuse import NEVER, earlier_larger, reuse
from epp.traffic.trace import Trace


def trace(*prompts: list[int]) -> Trace:
    return Trace(
        tuple(
            Record(at=float(i), input_tokens=10 * len(ids), output_tokens=1, runs=shortened(ids))
            for i, ids in enumerate(prompts)
        ),
        10,
    )


def kept(prompts: list[list[int]], blocks: int) -> int:
    """Blocks that an LRU cache finds: all looked up first, then used, the last one first."""
    cache: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for ids in prompts:
        found = [each in cache for each in ids]
        hits += found.index(False) if False in found else len(found)
        for each in reversed(ids):
            cache.pop(each, None)
            cache[each] = None
        while len(cache) > blocks:
            cache.popitem(last=False)
    return hits


def test_distances_by_hand() -> None:
    found = reuse(trace([1, 2], [3], [1, 2]))
    # The last request looks for 1, used most lately of its prompt: only 3 since; and for 2: 1 and 3.
    assert found.distance.tolist() == [NEVER, NEVER, NEVER, 2, 1]
    assert [found.hit_rate(size) for size in (10, 20, 30, 1e9)] == [0.0, 0.2, 0.4, 0.4]
    assert (found.ideal, found.unique_tokens) == (0.4, 30)


def test_a_block_that_is_not_full_is_never_found() -> None:
    record = Record(at=0.0, input_tokens=15, output_tokens=1, runs=((1, 2),))
    assert reuse(Trace((record, record), 10)).ideal == pytest.approx(10 / 30)


def test_an_empty_trace_finds_nothing() -> None:
    assert reuse(Trace((), 10)).ideal == 0.0


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=5), max_size=25), st.integers(1, 12)
)
def test_they_are_what_a_cache_really_finds(shapes: list[list[int]], blocks: int) -> None:
    numbers: dict[tuple[int, ...], int] = {}
    prompts = [
        [numbers.setdefault(tuple(shape[: i + 1]), len(numbers)) for i in range(len(shape))]
        for shape in shapes
    ]
    total = sum(map(len, prompts))
    found = reuse(trace(*prompts)).hit_rate(blocks * 10) * max(total, 1)
    assert found == pytest.approx(kept(prompts, blocks))


@given(st.lists(st.integers(-3, 9), max_size=40))
def test_earlier_larger_ones_are_counted(values: list[int]) -> None:
    expected = [sum(a > b for a in values[:i]) for i, b in enumerate(values)]
    assert earlier_larger(np.array(values, dtype=np.int64)).tolist() == expected
