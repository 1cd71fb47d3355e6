"""Field problems of scoring, shown on the default configuration from outside."""

from __future__ import annotations

import msgspec
import pytest

from tests.support import build
from tests.support.default_picker import DefaultPicker, spread, target, text


def pods(count: int, **load: float):
    return [
        build.endpoint(f"pod-{i}", host=f"10.0.0.{i + 1}", load=build.load(**load))
        for i in range(count)
    ]


@pytest.mark.parametrize("count", [3, 4, 7])
@pytest.mark.parametrize("prompt", ["short", "cold", "same", "mixed"])
def test_b086_a_burst_within_one_scrape_interval_spreads_evenly(count: int, prompt: str):
    """Field problem B086 (llm-d/llm-d-router#298): metrics frozen at zero, 100 requests at once.

    By the picker's own book every pod gets its share, within a fifth.
    """
    picker = DefaultPicker(*pods(count))
    bodies = {
        "short": lambda i: b"hello %d" % i,
        "cold": lambda i: text(1000, i),
        "same": lambda i: text(1000, 0),
        "mixed": lambda i: text(300, i % 10) + text(100, i),
    }
    share = spread([picker.send(bodies[prompt](i)) for i in range(100)])
    assert len(share) == count
    assert all(0.8 * 100 / count <= got <= 1.2 * 100 / count for got in share.values()), share


@pytest.mark.parametrize("prefilled", [False, True], ids=["prefill pending", "first byte seen"])
def test_b087_a_shared_system_prompt_does_not_drive_all_traffic_to_one_pod(prefilled: bool):
    """Field problem B087 (llm-d/llm-d-router#669, kserve/kserve#5411): prefix outweighed load."""
    picker = DefaultPicker(*pods(4))
    shared = text(4096, 1)
    sent = []
    for i in range(100):
        exchange = picker.send(shared + text(64, 1000 + i))
        if prefilled:
            exchange.response_head(200, streamed=True)
            exchange.response_piece(1)
        sent.append(exchange)
    assert len(spread(sent)) >= 3


def test_b088_cold_prompts_one_by_one_go_round():
    """Field problem B088 (llm-d/llm-d-router#346): cold prompts were clustered on a few pods."""
    picker = DefaultPicker(*pods(4))
    sent = []
    for i in range(40):
        exchange = picker.send(text(200 + 37 * (i % 5), i))
        exchange.complete()
        sent.append(exchange)
    share = spread(sent)
    assert len(share) == 4
    assert all(8 <= got <= 12 for got in share.values()), share


def test_b089_cold_prompts_avoid_a_long_queue_though_its_cache_is_empty():
    """Field problem B089 (sgl-project/sglang#14532, #14305): cache size decided alone."""
    picker = DefaultPicker(
        build.endpoint("busy", load=build.load(queued=40, kv_usage=0.0)),
        build.endpoint("idle", host="10.0.0.2", load=build.load(queued=0, kv_usage=1.0)),
    )
    assert spread([picker.send(text(500, i)) for i in range(20)]) == {"idle": 20}


def test_b090_a_pod_that_got_the_overflow_counts_as_warm():
    """Field problem B090 (sgl-project/sglang#8982): no learning while load overrode affinity."""
    picker = DefaultPicker(*pods(2))
    first = picker.send(text(1000, 1))
    warm = target(first)
    other = {"pod-0": "pod-1", "pod-1": "pod-0"}[warm]
    first.complete()
    picker.scrape(warm, build.load(at=1.0, queued=60, running=60))
    assert target(picker.send(text(1000, 1))) == other
    later = picker.send(text(1000, 1))
    assert sorted(later.request.match().held.values()) == [15, 15]


def test_b091_equal_requests_spread_over_the_ranks_of_one_server():
    """Field problem B091 (vllm-project/vllm#24564, #36748): requests piled up on a few ranks."""
    ranks = [
        build.endpoint(f"rank-{i}", port=8000 + i, rank=i, load=build.load()) for i in range(8)
    ]
    for body in (b"hello", text(400, 1)):
        picker = DefaultPicker(*ranks)
        share = spread([picker.send(body) for _ in range(64)])
        assert len(share) == 8
        assert max(share.values()) - min(share.values()) <= 3


@pytest.mark.parametrize("body", [b"hello", text(400, 1)], ids=["short", "one block and more"])
@pytest.mark.parametrize("seed", range(5))
def test_b093_several_pickers_do_not_all_choose_the_same_pod(seed: int, body: bytes):
    """Field problem B093 (ai-dynamo/dynamo#589, smg-project/smg#1621): each saw its own only."""
    pickers = [DefaultPicker(*pods(8), seed=10 * seed + i) for i in range(4)]
    share = spread([picker.send(body) for _ in range(8) for picker in pickers])
    assert sum(share.values()) == 32
    assert max(share.values()) <= 8


@pytest.mark.parametrize("reported", ["queued", "running"])
@pytest.mark.parametrize("body", [b"hello", text(400, 1)], ids=["short", "long"])
def test_b094_reported_load_and_own_picks_are_summed(reported: str, body: bytes):
    """Field problem B094 (vllm-project/router#178): one of them was used, never the sum."""
    picker = DefaultPicker(
        build.endpoint("zero", load=build.load()),
        build.endpoint("one", host="10.0.0.2", load=build.load(**{reported: 1})),
    )
    share = spread([picker.send(body) for _ in range(8)])
    assert (share["zero"], share["one"]) in {(4, 4), (5, 3), (3, 5)}


@pytest.mark.parametrize("tokens", [200, 1000, 4000])
def test_b096_a_request_leaves_its_warm_pod_when_the_wait_is_worth_more(tokens: int):
    """Field problem B096 (vllm-project/production-stack#1035): it queued while peers idled."""
    picker = DefaultPicker(*pods(4))
    first = picker.send(text(tokens, 1))
    first.complete()
    picker.scrape(target(first), build.load(at=1.0, queued=10, running=8))
    assert target(picker.send(text(tokens, 1))) != target(first)


def test_a_request_stays_with_its_warm_pod_while_the_wait_is_worth_less():
    picker = DefaultPicker(*pods(4))
    first = picker.send(text(2000, 1))
    first.complete()
    picker.scrape(target(first), build.load(at=1.0, queued=0, running=8))
    assert target(picker.send(text(2000, 1))) == target(first)


def test_b098_health_rules_never_leave_a_pool_without_an_endpoint():
    """Field problem B098 (sgl-project/sglang#13894): 503 for all though workers were alive."""
    unreachable = [msgspec.structs.replace(pod, reachable=False) for pod in pods(3)]
    picker = DefaultPicker(*unreachable)
    assert len(spread([picker.send() for _ in range(9)])) == 3


def test_a_pool_without_any_metrics_is_used_evenly():
    picker = DefaultPicker(*[build.endpoint(name, queued=None) for name in "abcd"])
    assert set(spread([picker.send(b"hi") for _ in range(40)]).values()) == {10}


def test_a_pod_whose_metrics_are_missing_gets_traffic_but_is_not_preferred():
    known = [build.endpoint(name, load=build.load(running=4)) for name in "ab"]
    picker = DefaultPicker(*known, build.endpoint("new", queued=None))
    share = spread([picker.send(text(300, i)) for i in range(30)])
    assert share["new"] == 10
    kept = DefaultPicker(*known[:1], build.endpoint("new", queued=None))
    kept.scrape("a", build.load(running=0))
    assert 4 <= spread([kept.send(text(300, i)) for i in range(10)])["new"] <= 5
