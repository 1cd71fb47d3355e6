"""Field problems of the approximate prefix index, shown on the default configuration."""

from __future__ import annotations

import struct
import time

import pytest
from xxhash import xxh3_64_intdigest

from epp.model import BlockHash, CacheInfo, EndpointId, Outcome
from epp.prefix.approx import ApproxPrefixCacheProducer
from epp.prefix.index import PrefixIndex
from tests.support import build
from tests.support.default_picker import DefaultPicker, target, text

HOSTS = {"a": "10.0.0.1", "b": "10.0.0.2"}


def pod(name: str, cache: CacheInfo | None = None, host: str = "10.0.0.1"):
    return build.endpoint(name, host=host, load=build.load(cache=cache))


def chain(start: int, length: int) -> tuple[BlockHash, ...]:
    return tuple(BlockHash((start << 20) + i) for i in range(length))


def matched(picker: DefaultPicker, body: bytes) -> dict[str, int]:
    match = picker.send(body).request.match()
    return {} if match is None else dict(match.held)


def test_b100_a_new_pod_with_a_deleted_pods_address_matches_nothing():
    """Field problem B100 (llm-d/llm-d-router#1736): deleted pods left entries behind."""
    picker = DefaultPicker(pod("uid-1"))
    exchange = picker.send(text(640, 1))
    picker.pool.remove(EndpointId("uid-1"))
    exchange.end(Outcome.COMPLETED, served="10.0.0.1:8000")  # late news of the old pod
    picker.pool.put(pod("uid-2"))
    assert matched(picker, text(640, 1)) == {}


def test_a_pod_whose_process_restarted_matches_nothing():
    picker = DefaultPicker(pod("a"))
    picker.send(text(640, 1))
    picker.pool.restarted(EndpointId("a"))
    assert matched(picker, text(640, 1)) == {}


def test_b104_the_index_is_back_at_its_start_after_200_pods_came_and_went():
    """Field problem B104 (kubernetes-sigs/gateway-api-inference-extension#1289)."""
    index = PrefixIndex(31_250)
    for i in range(200):
        index.learn(EndpointId(f"pod-{i}"), chain(i, 1000))
    assert index.entries == 200_000
    for i in range(200):
        index.forget(EndpointId(f"pod-{i}"))
    assert (index.entries, index.endpoints, index.blocks, index.bytes) == (0, 0, 0, 0)


def test_b105_blocks_of_one_token_are_clamped_and_a_million_tokens_stay_small():
    """Field problem B105 (llm-d/llm-d-router#1158): out of memory with blocks of one token."""
    params = ApproxPrefixCacheProducer.Params(auto_tune=False, block_size_tokens=1)
    tiny = ApproxPrefixCacheProducer(params, build.tools())
    assert tiny.dump_state()["blockTokens"] == 8
    index = PrefixIndex(31_250)
    for i in range(50):
        index.learn(EndpointId(f"pod-{i}"), chain(i, 1_000_000 // 64 // 50))
    assert index.bytes < 5_000_000


def test_b107_keys_are_the_same_in_every_process():
    """Field problem B107 (LMCache/LMCache#1095, #2136): hashes were seeded at random.

    Here they are worked out from the published definition of XXH3 alone; a test of
    tests/unit/prefix runs two processes.
    """
    root = xxh3_64_intdigest(struct.pack("<3Q", 1, 0, 0) + b"m")
    first = xxh3_64_intdigest(bytes(256), seed=root)
    second = xxh3_64_intdigest(bytes(256), seed=first)
    request = build.request(prompt=bytes(512), target_model="m")
    producer = ApproxPrefixCacheProducer(ApproxPrefixCacheProducer.Params(), build.tools())
    blocks = producer.enrich(request, ()).prefix[producer.type].blocks
    assert blocks == (first, second)


def test_b108_ten_times_the_capacity_in_one_go_stays_within_it():
    """Field problem B108 (vllm-project/aibrix#892): time-only eviction grew without bound."""
    index = PrefixIndex(1000)
    slowest = 0.0
    for i in range(1000):
        index.learn(EndpointId("a"), chain(i, 10))
        start = time.perf_counter()
        index.look_up(chain(i, 10))
        slowest = max(slowest, time.perf_counter() - start)
        assert index.entries <= 1000
    assert index.entries == 1000
    assert slowest < 0.05  # 5 ms, and room for a busy machine


def test_b109_a_thousand_rounds_of_one_pod_leave_the_index_flat():
    """Field problem B109 (smg-project/smg#2132): a removed worker's tree was kept."""
    picker = DefaultPicker(pod("steady", host="10.0.0.9"))
    index = picker.prefix.index
    sizes = []
    for i in range(1000):
        name = f"uid-{i}"
        picker.pool.put(pod(name))
        picker.pool.set_load(EndpointId("steady"), build.load(running=50))
        exchange = picker.send(text(640, i))
        assert target(exchange) == name
        exchange.complete()
        picker.pool.remove(EndpointId(name))
        sizes.append((index.entries, index.blocks, index.bytes, len(picker.ledger.all())))
    assert set(sizes[10:]) == {(0, 0, 0, 0)}


def test_b110_a_flood_of_unique_prompts_never_exceeds_the_bound():
    """Field problem B110 (sgl-project/sglang#16734): eviction was only on a timer."""
    bound = 20_000
    index = PrefixIndex(31_250, max_entries=bound)
    for i in range(2000):
        index.learn(EndpointId(f"pod-{i % 7}"), chain(i, 128))
        assert index.entries <= bound
        assert index.blocks <= bound * 1.05
    assert index.entries == bound


@pytest.mark.parametrize("facts", [{"target_model": "adapter"}, {"salt": "b"}, {"salt": ""}])
def test_b120_b125_model_adapter_and_salt_never_share_a_block(facts: dict[str, str]):
    """Field problems B120 (llm-d/llm-d-router#381) and B125 (smg-project/smg#2420)."""
    producer = ApproxPrefixCacheProducer(ApproxPrefixCacheProducer.Params(), build.tools())
    base = {"prompt": text(256, 1), "target_model": "base", "salt": "a"}
    learned = producer.enrich(build.request(**base), ())
    other = producer.enrich(build.request(**{**base, **facts}), ())
    assert not set(learned.match().blocks) & set(other.match().blocks)


def test_b124_only_prompts_are_indexed_and_a_match_is_never_longer_than_the_truth():
    """Field problem B124 (llm-d/llm-d-router#1021): the answer is not in the index.

    Turn 2 is turn 1, an answer of 2000 tokens and a question: what matches is turn 1, to
    the block.
    """
    picker = DefaultPicker(pod("a"))
    first = text(1000, 1)
    picker.send(first)
    second = first + text(2000, 2) + text(100, 3)
    assert matched(picker, second) == {"a": 1000 // 64}


def test_b126_huge_engine_blocks_still_tell_warm_from_cold():
    """Field problem B126 (llm-d/llm-d-router#2455): block_size 4096, prompts of 1k."""
    hybrid = CacheInfo(4096, 1_000_000)
    picker = DefaultPicker(*[pod(name, hybrid, host) for name, host in HOSTS.items()])
    first = picker.send(text(1024, 1))
    first.complete()
    assert matched(picker, text(1024, 1)) == {target(first): 4}


def test_b127_what_the_engine_has_no_room_for_is_not_claimed():
    """Field problem B127 (kubernetes-sigs/gateway-api-inference-extension#1304).

    100 blocks of 16 tokens are 1600 tokens, 25 blocks of ours.
    """
    picker = DefaultPicker(pod("a", CacheInfo(16, 1600)))
    for i in range(50):
        picker.send(text(64, i))
    assert matched(picker, text(64, 0)) == {}
    assert matched(picker, text(64, 49)) == {"a": 1}
    picker.pool.restarted(EndpointId("a"))
    picker.scrape("a", build.load(at=2.0, cache=CacheInfo(16, 3200)))
    for i in range(100):
        picker.send(text(64, i))
    assert picker.prefix.index.held(EndpointId("a")) == 50


def test_b129_explicit_values_without_tuning_are_shown_and_used():
    """Field problem B129 (kubernetes-sigs/gateway-api-inference-extension#1888)."""
    params = ApproxPrefixCacheProducer.Params(
        auto_tune=False, block_size_tokens=32, lru_capacity_per_server=500
    )
    producer = ApproxPrefixCacheProducer(params, build.tools())
    state = producer.dump_state()
    assert (state["blockTokens"], state["lruCapacityPerServer"]) == (32, 500)
    request = build.request(prompt=text(64, 1))
    match = producer.enrich(request, [pod("a", CacheInfo(128, 10**6))]).match()
    assert match.block_tokens == 32


def test_b130_the_capacity_setting_has_an_effect():
    """Field problem B130 (llm-d-incubation/py-inference-scheduler#19): capacity 10, 50 inserted."""
    params = ApproxPrefixCacheProducer.Params(lru_capacity_per_server=10)
    producer = ApproxPrefixCacheProducer(params, build.tools())
    for i in range(50):
        enriched = producer.enrich(build.request(prompt=text(64, i)), [pod("a")])
        producer.picked(enriched, build.pick("a"))
    assert producer.index.entries == 10


def test_b187_a_prompt_of_4_mb_does_not_hold_up_the_loop():
    """Field problem B187 (grpc/grpc#29508): CPU work blocks all streams. 131,072 tokens count."""
    picker = DefaultPicker(pod("a"))
    body = text(1 << 20, 1)
    times = []
    for _ in range(5):
        start = time.perf_counter()
        picker.send(body)
        times.append(time.perf_counter() - start)
    assert min(times) < 0.005
