"""Tables on a slab against a dictionary, with segments so small that they split all the time."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.prefix.exact.table import ABSENT, Slab, Table

ROWS = 16


def slab(segments: int = 512) -> Slab:
    return Slab(segments, ROWS, (np.uint64, np.uint16))


def put(table: Table, of: Slab, key: int, value: int) -> bool:
    row = table.put(key)
    if row == ABSENT:
        return False
    of.columns[0][row], of.columns[1][row] = value, 1
    return True


def alive(table: Table, of: Slab) -> dict[int, int]:
    rows = [row for segment in table.segments for row in of.alive(segment)]
    return {int(of.keys[row]): int(of.columns[0][row]) for row in rows}


# Numbers that are spread like hashes: those that are not are refused, see below.
KEYS = st.integers(1, 2**16).map(lambda number: number * 0x9E3779B97F4A7C15 % 2**64)
FEW = st.integers(1, 120).map(lambda number: number * 0x9E3779B97F4A7C15 % 2**64)


@given(st.lists(st.tuples(st.booleans(), KEYS | FEW, st.integers(0, 99)), max_size=300))
@settings(deadline=None)
def test_a_table_is_a_dictionary(steps: list[tuple[bool, int, int]]):
    of = slab()
    table, model = Table(of), dict[int, int]()
    for puts, key, value in steps:
        if puts:
            assert put(table, of, key, value)
            model[key] = value
        elif key in model:
            of.columns[1][table.find(key)] = 0
            del model[key]
    assert alive(table, of) == model
    for key, value in model.items():
        assert of.columns[0][table.find(key)] == value
    if table:
        asked = np.array([*model, 12345], np.uint64)
        rows = table.find_many(asked)
        values = np.where(of.columns[1][rows] != 0, of.columns[0][rows], 0)
        assert values.tolist() == [*model.values(), model.get(12345, 0)]


def test_many_keys_are_all_found_again_and_bulk_agrees():
    of, draw = slab(2000), random.Random(1)
    table = Table(of)
    model = {draw.getrandbits(64) | 1: i for i in range(5000)}
    for key, value in model.items():
        assert put(table, of, key, value)
    keys = np.array(list(model), np.uint64)
    assert of.columns[0][table.find_many(keys)].tolist() == list(model.values())
    assert alive(table, of) == model


def test_keys_that_share_a_home_go_round_the_segments_end():
    of = slab()
    table = Table(of)
    keys = [(i << 60) | (15 << 20) | 1 for i in range(16)]  # all at home in the last row
    for key in keys:
        assert put(table, of, key, key % 97)
    assert alive(table, of) == {key: key % 97 for key in keys}


def test_a_dead_row_keeps_its_key_until_its_room_is_needed():
    of = slab(1)
    table = Table(of)
    for key in range(1, 11):
        put(table, of, key << 20, key)
    row = table.find(3 << 20)
    of.columns[1][row] = 0
    assert of.columns[0][table.find(3 << 20)] == 3
    assert put(table, of, 11 << 20, 11)
    assert table.find(3 << 20) == ABSENT


def test_a_slab_that_is_full_refuses_and_keeps_what_it_has():
    of = slab(2)
    table = Table(of)
    keys = [(i * 0x9E3779B97F4A7C15) % 2**64 for i in range(1, 100)]
    kept = [key for key in keys if put(table, of, key, 7)]
    assert 10 <= len(kept) <= 2 * ROWS
    assert alive(table, of) == dict.fromkeys(kept, 7)


def test_keys_that_are_no_hashes_end_in_a_refusal_not_in_endless_splitting():
    of = slab(4000)
    table = Table(of)
    kept = [key for key in range(1, 40) if put(table, of, key, 1)]
    assert len(kept) == 10


def test_a_cleared_table_gives_its_segments_to_others():
    of = slab(4)
    first, second = Table(of), Table(of)
    for key in range(1, 11):
        put(first, of, key << 40, key)
    first.clear()
    assert (of.segments_used, first.segments, first.find(1 << 40)) == (0, [], ABSENT)
    assert put(second, of, 1 << 40, 5)
    assert alive(second, of) == {1 << 40: 5}


def test_memory_grows_with_what_is_used_only():
    of = slab(1000)
    assert (of.bytes, of.row_bytes) == (0, 18)
    put(Table(of), of, 1, 1)
    assert of.bytes == ROWS * 18


@pytest.mark.parametrize("key", [1, 2**64 - 1, 2**63])
def test_an_empty_table_finds_nothing(key: int):
    assert Table(slab()).find(key) == ABSENT


@given(st.lists(st.lists(KEYS | FEW, max_size=40), max_size=12), st.integers(1, 40))
@settings(deadline=None)
def test_keys_one_after_the_other_are_as_each_alone(batches: list[list[int]], segments: int):
    one, many = slab(segments), slab(segments)
    single, table = Table(one), Table(many)
    for batch in batches:
        refused = [put(single, one, key, at) for at, key in enumerate(batch)]
        for at, row in enumerate(table.put_each(batch)):
            assert (row != ABSENT) is refused[at]
            if row != ABSENT:
                many.columns[0][row], many.columns[1][row] = at, 1
        assert alive(table, many) == alive(single, one)
        assert list(table.find_each(batch)) == [table.find(key) for key in batch]
