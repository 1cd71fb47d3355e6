"""Blocks and who holds them: many at once are as one after the other."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest

from epp.prefix.exact import holders
from epp.prefix.exact.events import Tier
from epp.prefix.exact.held import Blocks
from epp.prefix.exact.holders import NOBODY, Planes, place

NAMES = range(60)  #: 0 is read as 1


def planes(of: Blocks) -> list[Planes]:
    """Return who holds each block, by tier."""
    rows = [of._table.find(name or 1) for name in NAMES]
    return [of.holders.planes[of._sets[row] if row >= 0 else NOBODY] for row in rows]


def uses(of: Blocks) -> Counter[int]:
    rows = {of._table.find(name or 1) for name in NAMES} - {-1}
    return Counter(of._sets[row] for row in rows if of._sets[row])


@pytest.mark.parametrize("sets", [1000, 6])
def test_many_at_once_are_as_one_after_the_other(sets: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(holders, "_SPARE", 4)  # so that sets are swept amid it all
    chooser = random.Random(sets)
    one, many = Blocks(4, sets), Blocks(4, sets)
    for _ in range(400):
        names = [chooser.choice(NAMES) for _ in range(chooser.randrange(12))]
        where = place(chooser.randrange(4), chooser.choice([Tier.GPU, Tier.EXPECTED]))
        kind = chooser.choice(["add", "move", "remove"])
        if kind == "add":
            refused = many.add_all(names, where)
            for name in names:
                one.add(name, where)
            assert sets == 6 or refused == 0
        elif kind == "move":
            other = place(chooser.randrange(4), Tier.CPU)
            refused = many.move_all(names, where, other)
            for name in names:
                one.add(name, other)
                one.remove(name, where)
            assert sets == 6 or refused == 0
        else:
            many.remove_all(names, where)
            for name in names:
                one.remove(name, where)
        if sets == 1000:  # where there is no room for all, which are kept is as it happens
            assert planes(many) == planes(one)
        assert many.count == sum(any(each) for each in planes(many)[1:])
        counted = {set_: count for set_, count in enumerate(many.holders._uses) if count and set_}
        assert counted == uses(many)


def test_blocks_whose_holders_there_is_no_room_for_are_counted():
    of = Blocks(4, 2)  # nobody, and one set more
    assert of.has_room(0)
    assert not of.has_room(1)
    assert of.add_all([1, 2], place(0, Tier.GPU)) == 0
    assert of.add_all([2, 3, 3], place(1, Tier.GPU)) == 3
    assert of.add_all([1, 2], place(0, Tier.GPU)) == 0  # they were there


def test_sets_one_by_one_are_those_of_all_at_once():
    of = Blocks(4, 1000)
    of.add_all([0, 5, 7], place(0, Tier.GPU))
    of.add_all([5], place(1, Tier.GPU))
    chain = [1, 5, 6, 7]  # 0 is read as 1
    assert list(of.sets_each(chain)) == of.sets(np.array(chain, np.uint64)).tolist()
    assert list(of.sets_each([0])) == list(of.sets_each([1])) != [NOBODY]
