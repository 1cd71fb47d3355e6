"""Gauges of the pipeline in use and of speeds. Streams and scrapes: in the integration tests."""

from __future__ import annotations

import re

from epp.clock import ManualClock
from epp.ledger import Ledger
from epp.model import BlockHash, Ending, EndpointId, Medium, Outcome, Pick
from epp.prefix.approx import ApproxPrefixCacheProducer
from epp.prefix.media import MmEmbeddingsCacheProducer
from epp.prefix.precise import PrecisePrefixCacheProducer
from epp.serve.counts import watch_encoders, watch_events, watch_pipeline, watch_speeds
from epp.telemetry.metrics import Metrics
from epp.ttft.forecast import Forecaster
from tests.support import build
from tests.support.kv import A, stored
from tests.support.pipelines import World


def sample(metrics: Metrics, name: str) -> list[str]:
    """The lines of one metric."""
    metrics.refresh()
    page = metrics.render()[0].decode()
    return [line for line in page.splitlines() if line.startswith(name)]


def test_the_prefix_index_s_size_and_the_pool_s_saturation_are_told() -> None:
    world, metrics = World(), Metrics(process=False)
    pipeline = world.pipeline(None)
    watch_pipeline(metrics, lambda: pipeline, world.pool)

    assert sample(metrics, "llm_d_epp_flow_control_pool_saturation{") == [], "an empty pool"
    # Queue 2 of 5 is 0.4; KV usage 0.4 of 0.8 is 0.5; their mean is 0.45.
    world.pool.put(build.endpoint("a", load=build.load(queued=2)))
    world.pool.put(build.endpoint("b", port=8001, load=build.load(kv_usage=0.4)))
    (line,) = sample(metrics, "llm_d_epp_flow_control_pool_saturation{")
    assert 'stage="effective"' in line
    assert float(line.split()[-1]) == 0.45

    (producer,) = (
        made for made in pipeline.plugins.values() if isinstance(made, ApproxPrefixCacheProducer)
    )
    producer.index.learn(EndpointId("a"), [BlockHash(1), BlockHash(2), BlockHash(3)])
    (line,) = sample(metrics, "llm_d_epp_prefix_indexer_size{")
    assert 'plugin_type="approx-prefix-cache-producer"' in line
    assert float(line.split()[-1]) == 3.0


def test_the_index_of_events_and_how_far_each_engine_is_believed_are_told() -> None:
    world, metrics = World(), Metrics(process=False)
    pipeline = world.pipeline("""
plugins:
- type: precise-prefix-cache-producer
  parameters: {indexerConfig: {kvBlockIndexConfig: {maxBytes: 100000}}}
- type: prefix-cache-scorer
  parameters: {prefixMatchInfoProducerName: precise-prefix-cache-producer}
""")
    watch_events(metrics, lambda: pipeline, world.pool)
    made = pipeline.plugins["precise-prefix-cache-producer"]
    assert isinstance(made, PrecisePrefixCacheProducer)
    world.pool.put(build.endpoint("a"))
    made.index.join(A)
    sequence = made.engines.add(A, 0, can_ask=True).sequence
    made.index.apply(A, [stored(16, 1, parent=1), *[stored(n * 10**6, 1000) for n in range(1, 9)]])
    sequence.live(3, b"", at=1.0, now=0.0)

    def told(name: str) -> float:
        (line,) = sample(metrics, name)
        return float(line.split()[-1])

    figures = made.index.figures()
    assert told("epp_kv_blocks{") == figures["blocks"] > 0
    assert told("epp_kv_refused_blocks_total{") == 8000 - figures["blocks"] > 0
    assert 0 < told("epp_kv_bytes{") < 200_000
    assert told("epp_kv_waiting_events{") == told("epp_kv_gaps_total{") == 1
    (line,) = sample(metrics, "epp_kv_trust{")
    assert 'level="prior"' in line
    assert 'reason="not_connected"' in line


def test_what_an_endpoint_s_own_answers_taught_is_told_and_no_guess() -> None:
    world, metrics = World(), Metrics(process=False)
    forecaster = Forecaster(Ledger(), ManualClock(), bend=0.0)
    watch_speeds(metrics, forecaster, world.pool)
    known, other = build.endpoint("a"), build.endpoint("b", port=8001)
    world.pool.put(known)
    world.pool.put(other)
    assert sample(metrics, "epp_learned_prefill_seconds_per_token{") == []

    # 1,000 tokens at the 62.5 us each that are believed at first: 37.5 of 100 ms are left.
    request = build.request(prompt_tokens=1000, streaming=True)
    pick = Pick((known,), expected=forecaster.expect(request, Pick((known,))))
    ending = Ending(Outcome.COMPLETED, 1.0, 200, first_byte_at=0.1, streamed=True)
    forecaster.ended(request, pick, ending)
    (line,) = sample(metrics, "epp_learned_prefill_seconds_per_token{")
    assert 'endpoint_name="a"' in line
    assert round(float(line.split()[-1]) * 1e6, 3) == 62.5
    (line,) = sample(metrics, "epp_learned_first_byte_rest_seconds{")
    assert round(float(line.split()[-1]), 6) == 0.0375


def test_media_asked_for_and_held_are_told_by_modality_and_pod_until_the_pod_is_gone() -> None:
    world, metrics = World(), Metrics(process=False)
    pipeline = world.pipeline("plugins: [{type: mm-embeddings-cache-scorer}]")
    watch_encoders(metrics, lambda: pipeline, world.pool)
    (producer,) = (
        made for made in pipeline.plugins.values() if isinstance(made, MmEmbeddingsCacheProducer)
    )
    held, other = build.endpoint("a", namespace="ns"), build.endpoint("b", port=8001)
    for endpoint in (held, other):
        world.pool.put(endpoint)
    image, again, sound = Medium("image", 1), Medium("image", 2), Medium("audio", 3)

    def ask(*media: Medium) -> None:
        asked = producer.enrich(build.request(media=media), (held, other))
        producer.picked(asked, Pick((held,)))

    # Nobody has the first two; then "a" has one of three, or of two different ones.
    ask(image, sound)
    ask(image, again, image)
    plugin = 'plugin_name="mm-embeddings-cache-producer",plugin_type="mm-embeddings-cache-producer"'
    assert plugin in sample(metrics, "llm_d_epp_encoder_cache_hit_ratio_sum")[0]
    prefix = "llm_d_epp_encoder_cache"
    assert told(metrics, f"{prefix}_queries_total") == {("image",): 3.0, ("audio",): 1.0}
    assert told(metrics, f"{prefix}_hits_total") == {("image", "ns/a-rank-0"): 1.0}
    # Shares: 0 and 0, then 1/2 and 0.
    assert sample(metrics, f"{prefix}_hit_ratio_sum")[0].endswith(" 0.5")
    assert sample(metrics, f"{prefix}_hit_ratio_count")[0].endswith(" 4.0")
    (zero,) = (line for line in sample(metrics, f"{prefix}_hit_ratio_bucket") if 'le="0.0"' in line)
    assert zero.endswith(" 3.0")

    producer.forget(held.id)
    assert told(metrics, f"{prefix}_hits_total") == {}
    assert producer.counts.hits == {"image": {}}


def told(metrics: Metrics, name: str) -> dict[tuple[str, ...], float]:
    """By modality, and the pod if there is one."""
    lines = [line.rpartition(" ") for line in sample(metrics, f"{name}{{")]
    return {
        tuple(re.findall(r'(?:modality|pod)="([^"]*)"', labels)): float(value)
        for labels, _, value in lines
    }
