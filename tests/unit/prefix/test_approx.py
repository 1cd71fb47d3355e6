"""The producer: block sizes, capacities, keys, what it learns and what it forgets."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import msgspec
import pytest

from epp.model import CacheInfo, Ending, Endpoint, EndpointId, InferenceRequest, Outcome, Pick
from epp.plugin import Enricher, Observer, PoolWatcher, StateDumper
from epp.prefix.approx import ApproxPrefixCacheProducer
from tests.support import build

NAME = ApproxPrefixCacheProducer.type


def producer(**params: Any) -> ApproxPrefixCacheProducer:
    made = msgspec.convert(params, ApproxPrefixCacheProducer.Params)
    return ApproxPrefixCacheProducer(made, build.tools())


def endpoint(name: str, cache: CacheInfo | None = None, host: str = "10.0.0.1") -> Endpoint:
    return build.endpoint(name, host=host, load=build.load(cache=cache))


def prompt(tokens: int, seed: int = 1) -> bytes:
    return b"".join((seed * 1_000_000 + i).to_bytes(4, "little") for i in range(tokens))


def request(tokens: int, seed: int = 1, **facts: object) -> InferenceRequest:
    return build.request(prompt=prompt(tokens, seed), prompt_tokens=tokens, **facts)


def route(
    knowing: ApproxPrefixCacheProducer,
    asked: InferenceRequest,
    *endpoints: Endpoint,
    prefill: Endpoint | None = None,
) -> None:
    knowing.picked(knowing.enrich(asked, endpoints), Pick(endpoints, prefill=prefill))


def held(
    knowing: ApproxPrefixCacheProducer, asked: InferenceRequest, *endpoints: Endpoint
) -> dict[str, int]:
    return dict(knowing.enrich(asked, endpoints).prefix[NAME].held)


A, B = endpoint("a"), endpoint("b", host="10.0.0.2")


def test_it_is_an_enricher_an_observer_a_pool_watcher_and_a_state_dumper():
    for protocol in (Enricher, Observer, PoolWatcher, StateDumper):
        assert isinstance(producer(), protocol)


def test_a_prompt_is_known_where_it_was_sent_and_only_its_full_blocks_count():
    knowing = producer()
    route(knowing, request(200), A)
    assert held(knowing, request(200), A, B) == {"a": 3}
    assert held(knowing, request(1000), A, B) == {"a": 3}
    assert held(knowing, request(200, seed=2), A, B) == {}


def test_the_match_stands_under_the_plugins_name_beside_those_of_others():
    other = object()
    enriched = producer().enrich(request(64, prefix={"other": other}), [A])
    assert list(enriched.prefix) == ["other", NAME]
    assert enriched.prefix[NAME].block_tokens == 64
    assert len(enriched.prefix[NAME].blocks) == 1


@pytest.mark.parametrize("tokens", [0, 63])
def test_a_prompt_without_a_full_block_is_left_as_it_is(tokens: int):
    asked = request(tokens)
    knowing = producer()
    assert knowing.enrich(asked, [A]) is asked
    knowing.picked(asked, Pick((A,)))
    assert knowing.index.entries == 0


def test_the_prefill_endpoint_learns_too():
    knowing = producer()
    route(knowing, request(128), A, prefill=B)
    assert held(knowing, request(128), A, B) == {"a": 2, "b": 2}


def test_only_the_first_choice_learns_and_a_fallback_once_it_has_served():
    knowing = producer()
    route(knowing, request(64, seed=9), B)
    asked = knowing.enrich(request(128), [A, B])
    pick = Pick((A, B))
    knowing.picked(asked, pick)
    assert held(knowing, request(128), A, B) == {"a": 2}
    knowing.ended(asked, pick, Ending(Outcome.COMPLETED, 1.0, served=B.address))
    assert held(knowing, request(128), A, B) == {"a": 2, "b": 2}


def test_a_late_ending_does_not_bring_a_forgotten_endpoint_back():
    knowing = producer()
    asked = knowing.enrich(request(128), [A, B])
    pick = Pick((A, B))
    knowing.picked(asked, pick)
    knowing.forget(A.id)
    knowing.forget(B.id)
    for served in (A.address, B.address, "", "10.9.9.9:1"):
        knowing.ended(asked, pick, Ending(Outcome.COMPLETED, 1.0, served=served))
    assert knowing.index.entries == 0


def test_a_forgotten_endpoint_holds_nothing():
    knowing = producer()
    route(knowing, request(128), A)
    knowing.forget(A.id)
    assert held(knowing, request(128), A) == {}


@pytest.mark.parametrize(
    ("params", "engine", "block_tokens"),
    [
        pytest.param({}, None, 64, id="default without a word from the engine"),
        pytest.param({}, 16, 64, id="small engine blocks are raised"),
        pytest.param({}, 128, 128, id="the engine's own size"),
        pytest.param({}, 4096, 256, id="huge engine blocks are capped"),
        pytest.param({"blockSizeTokens": 96}, None, 96, id="configured, engine silent"),
        pytest.param({"blockSizeTokens": 96}, 128, 128, id="configured, engine tells"),
        pytest.param({"autoTune": False}, 128, 16, id="default without tuning"),
        pytest.param({"autoTune": False, "blockSizeTokens": 32}, 128, 32, id="as given"),
        pytest.param({"autoTune": False, "blockSizeTokens": 1}, None, 8, id="clamped"),
    ],
)
def test_the_block_size(params: dict[str, Any], engine: int | None, block_tokens: int):
    cache = None if engine is None else CacheInfo(engine, 10**6)
    enriched = producer(**params).enrich(request(2048), [endpoint("a", cache)])
    assert enriched.prefix[NAME].block_tokens == block_tokens
    assert len(enriched.prefix[NAME].blocks) == 2048 // block_tokens


def test_the_block_size_does_not_change_with_the_candidates():
    knowing = producer()
    small, large = endpoint("a", CacheInfo(64, 10**6)), endpoint("b", CacheInfo(128, 10**6))
    sizes = [
        knowing.enrich(request(512), candidates).prefix[NAME].block_tokens
        for candidates in ([A], [small, large], [small], [A])
    ]
    assert sizes == [64, 128, 128, 128]


def test_a_new_generation_of_endpoints_may_bring_another_block_size():
    knowing = producer()
    old, new = endpoint("a", CacheInfo(128, 10**6)), endpoint("b", CacheInfo(64, 10**6))
    assert knowing.enrich(request(512), [old]).prefix[NAME].block_tokens == 128
    knowing.forget(old.id)
    assert knowing.enrich(request(512), [new]).prefix[NAME].block_tokens == 64


@pytest.mark.parametrize(
    ("params", "blocks"),
    [
        pytest.param({}, 2048, id="131072 tokens by default"),
        pytest.param({"maxPrefixTokensToMatch": 640}, 10, id="tokens"),
        pytest.param({"maxPrefixTokensToMatch": 1}, 1, id="at least one block"),
        pytest.param(
            {"maxPrefixTokensToMatch": 0, "maxPrefixBlocksToMatch": 5}, 5, id="blocks instead"
        ),
        pytest.param(
            {"maxPrefixTokensToMatch": 0, "maxPrefixBlocksToMatch": 0}, 2500, id="no limit"
        ),
    ],
)
def test_no_more_of_a_prompt_is_matched_than_configured(params: dict[str, Any], blocks: int):
    enriched = producer(**params).enrich(request(2500 * 64), [A])
    assert len(enriched.prefix[NAME].blocks) == blocks


def test_capacity_is_the_configured_one_while_the_engine_is_silent():
    knowing = producer(lruCapacityPerServer=10)
    for seed in range(50):
        route(knowing, request(64, seed), A)
    assert knowing.index.held(EndpointId("a")) == 10


def test_capacity_is_the_engines_own_in_tokens_once_told():
    knowing = producer()
    told = endpoint("a", CacheInfo(16, 1600))
    for seed in range(50):
        route(knowing, request(64, seed), told)
    assert knowing.index.held(EndpointId("a")) == 25


def test_without_tuning_the_engines_capacity_does_not_count():
    knowing = producer(autoTune=False, lruCapacityPerServer=10, blockSizeTokens=64)
    told = endpoint("a", CacheInfo(16, 10**6))
    for seed in range(50):
        route(knowing, request(64, seed), told)
    assert knowing.index.held(EndpointId("a")) == 10


def test_a_capacity_told_later_is_believed_before_the_next_match():
    knowing = producer()
    route(knowing, request(6400), A)
    assert held(knowing, request(6400), A) == {"a": 100}
    told = endpoint("a", CacheInfo(16, 640))
    assert held(knowing, request(6400), told) == {"a": 10}


def test_a_stale_load_keeps_the_capacity_last_told():
    knowing = producer()
    route(knowing, request(6400), endpoint("a", CacheInfo(16, 640)))
    stale = build.endpoint("a", queued=None)
    route(knowing, request(6400, seed=2), stale)
    assert knowing.index.held(EndpointId("a")) == 10


def test_model_and_salt_are_part_of_the_key():
    knowing = producer()
    route(knowing, request(128, target_model="base", salt="s"), A)
    assert held(knowing, request(128, target_model="base", salt="s"), A) == {"a": 2}
    for facts in ({"target_model": "adapter", "salt": "s"}, {"target_model": "base"}):
        assert held(knowing, request(128, **facts), A) == {}


def test_the_state_shows_settings_and_sizes_and_no_prompt():
    knowing = producer(autoTune=False, blockSizeTokens=32, lruCapacityPerServer=77)
    route(knowing, request(128), A)
    state = knowing.dump_state()
    msgspec.json.encode(state)
    assert state["bytes"] > 0
    assert {key: state[key] for key in state if key != "bytes"} == {
        "autoTune": False,
        "blockTokens": 32,
        "lruCapacityPerServer": 77,
        "endpoints": 1,
        "entries": 4,
        "blocks": 4,
    }


def test_hashes_do_not_depend_on_the_process():
    program = (
        "from tests.unit.prefix.test_approx import *\n"
        "print(producer().enrich(request(256, salt='s'), [A]).prefix[NAME].blocks)"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert printed == {f"{producer().enrich(request(256, salt='s'), [A]).prefix[NAME].blocks}\n"}
