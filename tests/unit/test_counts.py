"""Gauges of the pipeline in use and of speeds. Streams and scrapes: in the integration tests."""

from __future__ import annotations

from epp.clock import ManualClock
from epp.counts import watch_pipeline, watch_speeds
from epp.ledger import Ledger
from epp.model import BlockHash, Ending, EndpointId, Outcome, Pick
from epp.prefix.approx import ApproxPrefixCacheProducer
from epp.telemetry.metrics import Metrics
from epp.ttft.forecast import Forecaster
from tests.support import build
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


def test_what_an_endpoint_s_own_answers_taught_is_told_and_no_guess() -> None:
    world, metrics = World(), Metrics(process=False)
    forecaster = Forecaster(Ledger(), ManualClock())
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
