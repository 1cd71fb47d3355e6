"""The gauges that the pipeline in use knows. Streams and scrapes are in the integration tests."""

from __future__ import annotations

from epp.counts import watch_pipeline
from epp.model import BlockHash, EndpointId
from epp.prefix.approx import ApproxPrefixCacheProducer
from epp.telemetry.metrics import Metrics
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
