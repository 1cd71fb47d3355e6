"""Blocks whose parent is not known yet: how many may wait, whose, and what it costs the others."""

from __future__ import annotations

import gc

import pytest

from epp.prefix.exact import source, waiting
from epp.prefix.exact.events import Cleared, Removed, Stored, Tier
from epp.prefix.exact.index import ExactIndex
from epp.prefix.exact.keys import Keys
from epp.prefix.exact.waiting import Room
from tests.support.kv import A, B, held, index, prompt, stored


def small_room(most: int) -> tuple[ExactIndex, Room]:
    room = Room(most)
    of = ExactIndex(Keys((b"s",)), most_bytes=4_000_000, room=room)
    of.join(A)
    of.join(B)
    return of, room


def orphan(number: int) -> Stored:
    """A block of its own prompt, whose parent nobody tells."""
    return stored(number * 16, 1, parent=10**9 + number)


def test_an_engine_that_floods_the_room_costs_the_others_nothing():
    of, room = small_room(200_000)
    of.apply(B, [stored(16, 3, parent=1)])
    for number in range(100, 1100):
        of.apply(A, [orphan(number)])
        assert room.bytes <= room.most
    of.apply(B, [stored(7016, 3, parent=7001)])  # into a room that is full of others
    assert room.dropped > 500
    of.apply(B, [stored(0, 1), stored(7000, 1)])
    assert held(of, prompt(0, 64)) == held(of, prompt(7000, 64)) == {B: 4}


def test_of_what_one_engine_has_there_the_newest_stay():
    of, _ = small_room(200_000)
    for number in range(1, 1001):
        of.apply(A, [orphan(number)])
    for parent in (1, 1000):
        before = Stored((10**9 + parent,), None, bytes(64), 16)
        of.apply(A, [before])
    asked = prompt(0, 32)
    asked.tokens = bytes(64) + prompt(16_000, 16).tokens
    assert held(of, asked) == {A: 2}
    asked.tokens = bytes(64) + prompt(16, 16).tokens
    assert held(of, asked) == {A: 1}


def test_what_waited_of_an_engine_that_is_gone_makes_room_in_slices():
    of, room = small_room(10_000_000)
    for number in range(2000):
        of.apply(A, [orphan(number)])
    of.apply(A, [Cleared()])
    while of.sweeping:
        before = room.events
        of.sweep(1)
        assert before - room.events <= source.ROWS
    assert (room.events, room.bytes) == (0, 0)
    of.apply(A, [stored(0, 1, parent=None), stored(16, 1, parent=1)])
    assert held(of, prompt(0, 32)) == {A: 2}


def test_of_events_of_many_blocks_fewer_are_dropped_at_a_time():
    """A sweep may take a millisecond; 256 events of 256 blocks each take 48."""
    of, room = small_room(10_000_000)
    for number in range(100):
        of.apply(A, [stored(1_000_000 + number * 4096, 256, parent=7)])
    assert room.events == 100
    of.apply(A, [Cleared()])
    assert of.sweeping  # most of them are left for later
    while of.sweeping:
        before = room.events
        of.sweep(1)
        assert before - room.events <= source.ROWS // 256
    assert (room.events, room.bytes) == (0, 0)


def test_what_waited_for_one_block_is_named_in_slices():
    of = index(A)
    for number in range(1, 2000):
        of.apply(A, [stored(number * 16, 1, parent=number * 16 - 15)])
    of.apply(A, [stored(0, 1)])
    known = of.figures()["blocks"]
    assert known <= 1 + source.RESUMED
    while of.is_behind(A):
        of.resume(A)
        blocks = of.figures()["blocks"]
        assert blocks - known <= source.RESUMED
        known = blocks
    assert held(of, prompt(0, 32_000)) == {A: 2000}
    assert of.figures()["waiting_events"] == 0


def test_blocks_removed_before_their_turn_comes_are_not_held():
    of = index(A)
    for number in range(1, 1000):
        of.apply(A, [stored(number * 16, 1, parent=number * 16 - 15)])
    of.apply(A, [stored(0, 1), Removed((999 * 16 + 1, 500 * 16 + 1))])
    while of.is_behind(A):
        of.resume(A)
    assert held(of, prompt(0, 16_000)) == {A: 500}
    assert of.figures()["blocks"] == 998


def test_many_children_of_one_parent_are_told_in_any_number():
    of = index(A)
    for number in range(1, 1000):
        of.apply(A, [stored(number * 16, 1, parent=1)])
    of.apply(A, [stored(0, 1)])
    while of.is_behind(A):
        of.resume(A)
    assert of.figures()["blocks"] == 1000


@pytest.mark.parametrize("event", [stored(16, 1, parent=1), Stored((17,), None, b"", 0)])
def test_more_copies_than_are_counted_are_no_error(event: Stored):
    of = ExactIndex(Keys((b"s",)), most_bytes=4_000_000, room=Room(1 << 30))
    of.join(A)
    for _ in range(700):
        of.apply(A, [event] * 100)
    of.apply(A, [stored(0, 2)])
    while of.is_behind(A):
        of.resume(A)
    assert held(of, prompt(0, 32)) == {A: 2}


def test_a_parent_that_waits_itself_and_is_found_out_goes_with_its_removal():
    of = index(A)
    of.apply(A, [stored(16, 1, parent=1)])  # the prompt's first block was told to nobody
    of.expect(A, of.look_up(prompt(0, 48)).chains[0], until=2.0)
    of.apply(A, [stored(32, 1, parent=17)])
    of.expire(9.0)
    assert held(of, prompt(0, 48)) == {A: 3}
    of.apply(A, [Removed((17,)), stored(0, 1)])
    assert held(of, prompt(0, 48)) == {A: 1}


def test_all_that_waits_for_a_parent_that_is_found_out_is_named():
    of = index(A)
    of.apply(A, [stored(160, 1, parent=17)])
    of.expect(A, of.look_up(prompt(0, 48)).chains[0], until=2.0)
    of.apply(A, [stored(32, 1, parent=17)])
    of.expire(9.0)
    asked = prompt(0, 48)
    asked.tokens = asked.tokens[:128] + prompt(160, 16).tokens
    assert held(of, asked) == {A: 3}


def test_what_waits_gives_the_garbage_collector_nothing_to_look_at():
    of, room = small_room(10_000_000)
    before = len(gc.get_objects())
    for number in range(3000):
        of.apply(A, [orphan(number)])
    gc.collect()  # which finds out that tuples of numbers need no second look
    assert room.events == 3000
    assert len(gc.get_objects()) - before < 300


def test_placeholders_that_wait_are_bounded_too():
    of, room = small_room(100_000)
    for number in range(5000):
        of.apply(A, [Stored((number,), None, b"", 0, Tier.CPU)])
    assert room.most - 2 * waiting.HASH_BYTES < room.bytes <= room.most
