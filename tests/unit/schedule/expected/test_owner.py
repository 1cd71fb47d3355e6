"""Who owns a prompt: the same for all replicas, by speed, within bounds, stable over changes."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from epp.model import BlockHash, Endpoint, PrefixMatch
from epp.schedule.expected.owner import Slots, fingerprint, owner, ranks
from tests.support import build

KEYS = [key * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF for key in range(1, 4001)]
MATCH = PrefixMatch(tuple(BlockHash(n) for n in (11, 12, 13, 14)), 64, {})


def pods(*names: str) -> tuple[Endpoint, ...]:
    return tuple(build.endpoint(name) for name in names)


def owners(endpoints: tuple[Endpoint, ...], *seconds: float) -> list[str]:
    slots = Slots().of(endpoints, [endpoint.id for endpoint in endpoints])
    speeds = np.array(seconds or [1e-4] * len(endpoints))
    return [endpoints[int(ranks(key, slots, speeds).argmax())].name for key in KEYS]


def test_equal_endpoints_own_equal_shares() -> None:
    found = Counter(owners(pods("a", "b", "c", "d")))
    assert all(count == pytest.approx(1000, rel=0.15) for count in found.values())


def test_an_endpoint_twice_as_fast_owns_twice_as_much() -> None:
    found = Counter(owners(pods("a", "b"), 1e-4, 2e-4))
    assert found["a"] == pytest.approx(4000 * 2 / 3, rel=0.05)


def test_speeds_that_hardly_differ_are_the_same_to_all_replicas() -> None:
    assert owners(pods("a", "b"), 1.00e-4, 1.15e-4) == owners(pods("a", "b"))


def test_the_order_of_endpoints_changes_no_owner() -> None:
    assert owners(pods("a", "b", "c")) == owners(pods("c", "a", "b"))


def test_one_that_goes_moves_its_own_prompts_only() -> None:
    before, after = owners(pods("a", "b", "c")), owners(pods("a", "b"))
    assert all(old == new for old, new in zip(before, after, strict=True) if old != "c")


def test_an_owner_with_too_much_to_do_gives_way_to_the_next() -> None:
    near = np.array([0.9, 0.5, 0.7])
    assert owner(near, np.array([1000.0, 1000.0, 1000.0]), 1100.0) == 0
    # 1.25 * (mean 1,000 + 100) are 1,375.
    assert owner(near, np.array([1376.0, 924.0, 700.0]), 1100.0) == 2


def test_a_conversation_is_known_by_its_session() -> None:
    one, other = (build.request(session=name) for name in ("s-1", "s-2"))
    assert fingerprint(one, MATCH, [0, 0], 2) == fingerprint(one, None, [], 2)
    assert fingerprint(one, MATCH, [], 2) != fingerprint(other, MATCH, [], 2)


def test_else_by_the_first_block_that_is_not_at_home_everywhere() -> None:
    request = build.request()
    assert fingerprint(request, MATCH, [], 2) == 11
    assert fingerprint(request, MATCH, [2, 2, 4, 0], 4) == 13  # two blocks are on half of the pods
    assert fingerprint(request, MATCH, [2, 4, 2], 4) == 13  # one that is left out holds none
    assert fingerprint(request, MATCH, [4], 3) == 11
    assert fingerprint(request, MATCH, [4, 4, 4, 4], 4) == 14


def test_without_any_block_each_request_is_its_own() -> None:
    one, other = build.request(id="r-1"), build.request(id="r-2")
    assert fingerprint(one, None, [], 2) != fingerprint(other, None, [], 2)
