"""Tiers below the GPU: what they hold, what loading it takes, and what an engine makes of it."""

from __future__ import annotations

import msgspec
import pytest

from epp.collect.parse.kv_events import parse
from epp.errors import ConfigError
from epp.prefix.exact.events import Removed, Stored, Tier
from epp.sim.engine import Engine
from epp.sim.kv_events import Encoder
from epp.sim.model import Config, Finished, Request
from epp.sim.offload.tiers import Change, Offload, Tiers
from epp.sim.options import EngineOptions
from epp.sim.profiles import Timing

#: A step takes 10 ms and 0.1 ms per token of a prompt.
TIMING = Timing(0.010, per_decode=0.0, per_context=0.0, per_prefill=0.0001, per_attention=0.0)
BLOCK = 4


def tiers(cpu: int, disk: int = 0) -> Tiers:
    """From the CPU a block of four tokens takes 1 ms, from the disk 4 ms more."""
    offload = Offload(cpu, disk, cpu_rate=4000.0, disk_rate=1000.0)
    return Tiers(offload, block_tokens=BLOCK, journal=True)


def engine(offload: Offload, *, kv_blocks: int = 5, budget: int = 64) -> Engine:
    return Engine(Config(TIMING, kv_blocks, BLOCK, 8, budget, journal=True, offload=offload))


def request(name: str, first: int, blocks: int) -> Request:
    """Return a prompt of so many whole blocks, called ``first`` and so on, and one token more."""
    return Request(name, blocks * BLOCK + 1, 1, range(first, first + blocks))


def run(it: Engine, asked: Request, at: float) -> Finished:
    """Compute a request that begins at ``at``, alone; loads end when they say."""
    it.submit(asked, at)
    for _ in range(20):
        duration = it.begin(at)
        for name in it.to_fetch():
            ends = it.load_ends(name)
            assert ends is not None
            at = ends
            it.fetched(name)
        if duration is not None:
            at += duration
            for end in it.complete(at).finished:
                return end
    raise AssertionError("the request does not end")


def test_a_block_is_on_all_tiers_until_each_needs_its_place() -> None:
    it = tiers(2, 3)
    it.store([1, 2])
    assert sorted((each.block, each.medium) for each in it.news()) == [
        (1, "CPU"), (1, "STORAGE"), (2, "CPU"), (2, "STORAGE")
    ]  # fmt: skip
    it.store([3])
    assert it.news() == [
        Change(2, "CPU", stored=False), Change(3, "CPU", stored=True), Change(3, "STORAGE", stored=True)
    ]  # fmt: skip
    assert it.match([1, 2, 3, 4, 1]) == (1, 2, 3)
    assert it.news() == []


def test_what_is_used_again_is_kept_and_of_a_prompt_its_beginning() -> None:
    it = tiers(3)
    it.store([1, 2])
    it.store([9])
    it.store([1, 2])
    it.store([10, 11])
    assert [it.match([block]) for block in (1, 2, 9)] == [(1,), (), ()]


def test_loads_take_their_time_one_after_another_and_those_from_a_disk_pass_the_cpu() -> None:
    it = tiers(2, 8)
    it.store([1, 2, 3, 4])  # the CPU has room for 1 and 2
    assert it.load([1, 2, 3], at=1.0) == pytest.approx(1.0 + 0.004 + 0.003)
    assert it.load([3], at=1.001) == pytest.approx(1.007 + 0.004 + 0.001)
    assert it.load([3], at=5.0) == pytest.approx(5.001)  # on the CPU by now


def test_without_room_on_the_cpu_there_are_no_tiers() -> None:
    it = tiers(0)
    it.store([1])
    assert (bool(it), it.match([1]), it.news()) == (False, (), [])


def test_what_the_gpu_gave_up_is_loaded_and_counts_as_cached() -> None:
    it = engine(Offload(cpu_blocks=100, cpu_rate=4000.0))
    assert run(it, request("a", 1, 3), 0.0).cached_tokens == 0
    run(it, request("b", 11, 3), 1.0)  # in a GPU of four blocks
    it.news()
    again = run(it, request("c", 1, 3), 2.0)
    assert again.cached_tokens == 12
    # 3 ms of loading, and a step of one token; computed, it took 10 + 13 x 0.1 ms
    assert again.first_token_at == pytest.approx(2.0 + 0.003 + 0.0101)
    _, sealed = it.news()
    assert [(each.first, each.end) for each in sealed] == [(0, 3)]  # told as on the GPU again
    totals = it.totals
    assert (totals.external_tokens, totals.hit_tokens) == (12, 0)
    assert totals.computed_tokens == 13 + 13 + 1


def test_lower_tiers_go_on_where_the_gpu_ends_and_never_cover_the_last_token() -> None:
    it = engine(Offload(cpu_blocks=100, cpu_rate=4000.0), kv_blocks=7)
    run(it, request("a", 1, 4), 0.0)
    run(it, request("b", 11, 3), 1.0)  # takes the places of the last blocks, 4 and 3
    whole = msgspec.structs.replace(request("c", 1, 4), prompt_tokens=16)
    end = run(it, whole, 2.0)
    assert end.cached_tokens == 12  # the fourth block holds the last token
    assert (it.totals.hit_tokens, it.totals.external_tokens) == (8, 4)


def test_others_are_computed_while_one_loads() -> None:
    it = engine(Offload(cpu_blocks=100, cpu_rate=4.0), kv_blocks=101)
    run(it, request("a", 1, 3), 0.0)
    it.cache.clear()
    it.submit(request("c", 1, 3), 2.0)
    it.submit(request("d", 21, 3), 2.0)
    assert it.begin(2.0) == pytest.approx(0.010 + 0.0013)
    assert it.to_fetch() == ["c"]
    assert it.load_ends("c") == pytest.approx(5.0)  # a second a block
    assert [end.id for end in it.complete(2.1).finished] == ["d"]
    assert (it.begin(2.1), it.waiting) == (None, 1)
    assert it.abort("c", 3.0) is not None
    it.fetched("c")  # of no effect any more
    assert (it.waiting, it.cache.used) == (0, 0)


@pytest.mark.parametrize("layout", ["map", "array"])
def test_events_of_lower_tiers_are_placeholders(layout: str) -> None:
    encoder = Encoder(layout, block_tokens=16)
    changes = [
        Change(7, "CPU", stored=True), Change(7, "STORAGE", stored=True), Change(8, "CPU", stored=False)
    ]  # fmt: skip
    batch = parse(encoder.payload(1.0, encoder.moved(changes)))
    assert batch.events == (
        Stored((7,), None, b"", 0, Tier.CPU), Stored((7,), None, b"", 0, Tier.DISK), Removed((8,), Tier.CPU)
    )  # fmt: skip


def test_a_placeholder_in_a_map_has_the_fields_that_vllm_sends() -> None:
    encoder = Encoder("map", block_tokens=16)
    assert encoder.moved([Change(7, "CPU", stored=True)]) == [
        {
            "type": "BlockStored", "block_hashes": [7], "parent_block_hash": None, "token_ids": [],
            "block_size": 0, "lora_id": None, "medium": "CPU", "lora_name": None, "group_idx": 0,
        }
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (EngineOptions(kv_disk_blocks=5), "kv_cpu_blocks is too small: 0"),
        (EngineOptions(kv_cpu_blocks=-1), "kv_cpu_blocks is too small: -1"),
        (EngineOptions(kv_cpu_rate=0.0), "kv_cpu_rate must be > 0"),
    ],
)
def test_tiers_that_cannot_be_are_refused(options: EngineOptions, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        options.config()
