"""Pods that are one engine: an endpoint is a group and a rank, and a group is healthy as a whole."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from epp.collect.parse.pods import endpoints_of, read_pod
from epp.model import GROUP, Load
from epp.pool import Pool
from tests.support import build
from tests.support.pods import pod

A0, A1 = (build.endpoint(f"a{i}", labels={GROUP: "a"}, rank=i) for i in range(2))
B0, B1 = (build.endpoint(f"b{i}", labels={GROUP: "b"}, rank=i) for i in range(2))
ALONE = build.endpoint("alone")


def pool() -> Pool:
    made = Pool()
    for each in (A0, A1, B0, B1, ALONE):
        made.put(each)
    return made


def names(made: Pool) -> list[str]:
    return [each.name for each in made.routable()]


def drains(made: Pool) -> None:
    made.put(build.endpoint("a1", labels={GROUP: "a"}, rank=1, draining=True))


def sleeps(made: Pool) -> None:
    made.set_load(A1.id, Load(at=0.0, asleep=True))


def is_gone(made: Pool) -> None:
    made.set_reachable(A1.id, reachable=False)


@pytest.mark.parametrize("falls", [drains, sleeps, is_gone])
def test_one_rank_that_cannot_answer_takes_its_group_out_and_no_other(
    falls: Callable[[Pool], None],
) -> None:
    made = pool()
    assert names(made) == ["a0", "a1", "b0", "b1", "alone"]
    falls(made)
    assert names(made) == ["b0", "b1", "alone"]


def test_a_group_is_back_when_all_its_ranks_are() -> None:
    made = pool()
    is_gone(made)
    made.set_reachable(A1.id, reachable=True)
    assert names(made) == ["a0", "a1", "b0", "b1", "alone"]


def test_ranks_without_a_group_are_engines_of_their_own() -> None:
    made = Pool()
    made.put(build.endpoint("r0", rank=0))
    made.put(build.endpoint("r1", rank=1, reachable=False))
    assert names(made) == ["r0"]


def test_if_every_group_has_a_bad_rank_the_good_ranks_serve() -> None:
    made = pool()
    made.remove(ALONE.id)
    is_gone(made)
    made.set_reachable(B0.id, reachable=False)
    assert names(made) == ["a0", "b1"]


def test_an_endpoint_is_a_group_and_a_rank() -> None:
    found = endpoints_of(read_pod(pod("w", "10.0.0.2", labels={GROUP: "a"})), (8000, 8001))
    assert [(each.labels[GROUP], each.rank, each.port) for each in found] == [
        ("a", 0, 8000), ("a", 1, 8001),
    ]  # fmt: skip
