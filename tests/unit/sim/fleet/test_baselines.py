"""Baselines choose what their formulas say, on figures worked out by hand."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from epp.clock import ManualClock
from epp.ledger import Ledger
from epp.model import InferenceRequest, PrefixMatch
from epp.plugin import Tools
from epp.sim.baselines.aibrix import AibrixPrefix
from epp.sim.baselines.cache_aware import CacheAware
from epp.sim.baselines.choosing import Choosing
from epp.sim.baselines.dynamo import Dynamo
from epp.sim.baselines.greedy import GreedyWork
from epp.sim.baselines.least_load import LeastLoad
from epp.sim.baselines.lmetric import LMetric
from epp.sim.baselines.plain import PowerOfTwo, RoundRobin
from epp.sim.baselines.preble import Preble
from epp.sim.baselines.ring import PrefixHash, SessionHash
from tests.support import build

PODS = [build.endpoint(name, host=f"10.0.0.{i}") for i, name in enumerate("abcd", 1)]


class Bench:
    """A baseline, and what is in flight."""

    def __init__(self, class_: type[Choosing], **params: float) -> None:
        self.ledger = Ledger()
        tools = Tools(ManualClock(), random.Random(1), self.ledger)
        self.made = class_(class_.Params(**params), tools)

    def busy(self, **tokens: list[int]) -> Bench:
        for name, each in tokens.items():
            for one in each:
                self.ledger.reserve(PODS["abcd".index(name)], one)
        return self

    def chosen(self, asked: InferenceRequest, pods: list = PODS) -> str:
        return pods[self.made.choose(asked, pods)].name


def asked(tokens: int = 1000, session: str = "s", **held: int) -> InferenceRequest:
    """A request of blocks of 100 tokens, of which pods hold so many."""
    blocks = tuple(range(tokens // 100))
    by_id = {PODS["abcd".index(name)].id: count for name, count in held.items()}
    match = PrefixMatch(blocks, 100, by_id)
    return build.request(
        prompt=b"x" * tokens * 4, prompt_tokens=tokens, prefix={"p": match}, session=session
    )


def test_round_robin_takes_every_engine_once_before_any_twice():
    bench = Bench(RoundRobin)
    assert Counter(bench.chosen(asked()) for _ in range(8)) == dict.fromkeys("abcd", 2)


def test_power_of_two_never_takes_the_busiest_of_all():
    bench = Bench(PowerOfTwo).busy(a=[1] * 9, b=[1], c=[1], d=[1])
    assert "a" not in {bench.chosen(asked()) for _ in range(50)}


def test_a_session_stays_while_engines_come_and_mostly_when_one_goes():
    bench = Bench(SessionHash)
    names = [f"s{i}" for i in range(200)]
    before = {name: bench.chosen(asked(session=name)) for name in names}
    after = {name: bench.chosen(asked(session=name), PODS[:3]) for name in names}
    assert set(before.values()) == set("abcd")
    assert all(after[name] == before[name] for name in names if before[name] != "d")


def test_bounded_load_sends_on_what_the_owner_has_too_much_of():
    bench = Bench(PrefixHash)
    owner = bench.chosen(asked())
    bench.busy(**{owner: [1, 1]})
    assert bench.chosen(asked()) != owner  # at most 1.25 * 3 / 4 requests, so one


def test_lmetric_multiplies_tokens_and_requests():
    bench = Bench(LMetric).busy(a=[0, 0], b=[400], c=[5000], d=[5000])
    # a: 300 * 3 = 900; b: (1000 + 400) * 2 = 2800
    assert bench.chosen(asked(a=7)) == "a"
    # a: 1000 * 3 = 3000; b: (800 + 400) * 2 = 2400
    assert bench.chosen(asked(b=2)) == "b"


def test_greedy_adds_tokens():
    bench = Bench(GreedyWork).busy(a=[900], b=[500], c=[5000], d=[5000])
    assert bench.chosen(asked(a=5)) == "a"  # 1400 against 1500
    assert bench.chosen(asked(a=3)) == "b"  # 1600 against 1500


def test_cache_aware_follows_the_match_until_loads_are_uneven():
    even = Bench(CacheAware).busy(a=[1] * 60)
    assert even.chosen(asked(a=4)) == "a"
    uneven = Bench(CacheAware).busy(a=[1] * 65)
    assert uneven.chosen(asked(a=4)) != "a"


def test_dynamo_adds_blocks_in_use_to_those_to_compute():
    bench = Bench(Dynamo)
    bench.made.picked(asked(600), build.pick("a"))  # type: ignore[attr-defined]
    assert bench.chosen(asked(a=5, b=0, c=0, d=0)) != "a"  # 500 + 600 against 1000
    assert bench.chosen(asked(a=7)) == "a"  # 300 + 600


def test_dynamo_with_a_temperature_takes_others_too_but_seldom_the_worst():
    bench = Bench(Dynamo, temperature=0.5).busy(d=[9000])
    taken = Counter(bench.chosen(asked(a=10)) for _ in range(400))
    assert set(taken) == set("abcd")
    assert taken["a"] > taken["b"] > taken["d"]


def test_least_load_fears_a_full_cache_more_than_a_queue():
    pods = [
        build.endpoint("a", host="10.0.0.1", load=build.load(queued=0, kv_usage=0.9)),
        build.endpoint("b", host="10.0.0.2", load=build.load(queued=2, kv_usage=0.0)),
    ]
    # a: 0.15 * 0.9 / 0.1 = 1.35 s; b: 2 * 1024 / 2000 = 1.02 s
    assert Bench(LeastLoad).chosen(asked(), pods) == "b"


def test_aibrix_leaves_a_match_that_is_a_sigma_above_the_mean():
    bench = Bench(AibrixPrefix).busy(a=[1] * 3, b=[1])
    assert bench.chosen(asked(a=9)) != "a"  # mean 1, sigma 1.22
    bench = Bench(AibrixPrefix).busy(a=[1] * 2, b=[1], c=[1])
    assert bench.chosen(asked(b=9)) == "b"


@pytest.mark.parametrize(("held", "name"), [(6, "a"), (4, "b")])
def test_preble_exploits_only_what_is_more_than_half_cached(held: int, name: str):
    bench = Bench(Preble)
    for pod, tokens in zip(PODS, (3000, 1000, 2000, 2000), strict=True):
        match = asked(tokens)
        bench.made.picked(match, build.pick(pod.name))  # type: ignore[attr-defined]
    # Explored: a 3000 + 600, b 1000 + 1000.
    assert bench.chosen(asked(a=held)) == name
