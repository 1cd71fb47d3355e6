"""Engines of a fleet with tiers below the GPU: when they load from there, and what they tell of it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from msgspec import structs

from epp.model import EndpointId
from epp.prefix.exact.events import Event, Removed, Stored, Tier
from epp.sim.fleet.feeds import Publisher
from epp.sim.fleet.leap import News
from epp.sim.fleet.pod import Pod
from epp.sim.fleet.scenario import Pods
from epp.sim.fleet.timeline import Timeline
from epp.sim.model import Config, Finished, Request
from epp.sim.offload.tiers import Offload
from epp.sim.profiles import Timing

#: A step takes 10 ms, and 1 ms for each token of a prompt. The GPU holds one prompt of five blocks.
CONFIG = Config(
    timing=Timing(base=0.01, per_decode=0.0, per_context=0.0, per_prefill=0.001, per_attention=0.0),
    kv_blocks=7,
    block_tokens=10,
    max_num_seqs=10,
    max_num_batched_tokens=100,
    journal=True,
    offload=Offload(cpu_blocks=20, disk_blocks=0, cpu_rate=100.0),
)
A_BLOCKS, B_BLOCKS = (1, 2, 3, 4, 5), (11, 12, 13, 14, 15)


class World:
    """One pod, and whoever hears of it."""

    def __init__(self, config: Config = CONFIG) -> None:
        self.told: list[Event] = []
        self.finished: dict[str, Finished] = {}
        self.timeline = Timeline()
        self.pod = Pod(0, Pods(), config, timeline=self.timeline, around=self)
        self._publisher = Publisher([self], lambda blocks: b"\0" * 40 * len(blocks))

    def tell(self, endpoint_id: EndpointId, message: tuple[int, Sequence[Event]]) -> None:
        self.told += message[1]

    def news(self, pod: Pod, news: News) -> None:
        self.finished |= {each.id: each for each in news.finished}
        self._publisher.publish(pod)

    def fetch(self, pod: Pod, request_id: str) -> None:
        raise AssertionError(f"{request_id} is of no other engine")

    def fail(self, request_id: str) -> None: ...

    def play(self, **asked: tuple[float, tuple[int, ...]]) -> None:
        """Send prompts of 51 tokens, by name at a time, with these blocks."""
        for name, (at, blocks) in asked.items():
            self.timeline.at(at, self.pod.submit, Request(name, 51, 1, blocks))
        while self.timeline.next_at < math.inf:
            self.timeline.step()


def test_what_the_gpu_gave_up_is_loaded_before_the_rest_is_computed():
    world = World()
    world.play(first=(0.0, A_BLOCKS), other=(1.0, B_BLOCKS), again=(2.0, A_BLOCKS))
    assert {name: each.cached_tokens for name, each in world.finished.items()} == {
        "first": 0, "other": 0, "again": 50,
    }  # fmt: skip
    first, again = world.finished["first"], world.finished["again"]
    assert first.ended_at == pytest.approx(0.061)  # 51 tokens in one step
    assert again.ended_at == pytest.approx(2.511)  # 50 loaded at 100 a second, and one computed


def test_lower_tiers_are_told_by_placeholders_and_outlive_the_gpu():
    world = World()
    world.play(first=(0.0, A_BLOCKS), other=(1.0, B_BLOCKS))
    placed = {
        h for e in world.told if isinstance(e, Stored) and e.tier is Tier.CPU for h in e.hashes
    }
    gone = {(h, e.tier) for e in world.told if isinstance(e, Removed) for h in e.hashes}
    assert placed == {*A_BLOCKS, *B_BLOCKS}
    assert not any(e.tokens for e in world.told if isinstance(e, Stored) and e.tier is Tier.CPU)
    assert {h for h, tier in gone if tier is Tier.GPU} >= {3, 4, 5}
    assert not {h for h, tier in gone if tier is Tier.CPU}


def test_a_full_tier_tells_what_it_gives_up():
    small = structs.replace(CONFIG.offload, cpu_blocks=5)
    world = World(structs.replace(CONFIG, offload=small))
    world.play(first=(0.0, A_BLOCKS), other=(1.0, B_BLOCKS), again=(2.0, A_BLOCKS))
    gone = [
        h for e in world.told if isinstance(e, Removed) and e.tier is Tier.CPU for h in e.hashes
    ]
    assert set(A_BLOCKS) <= set(gone)


def test_an_engine_that_died_while_it_loaded_computes_nothing_more():
    world = World()
    world.timeline.at(2.2, world.pod.crash)
    world.play(first=(0.0, A_BLOCKS), other=(1.0, B_BLOCKS), again=(2.0, A_BLOCKS))
    assert set(world.finished) == {"first", "other"}
