"""One page of the counts of a process and of its pools, told apart by a label.

Each pool counts for itself, as the only pool of a process does, so counting costs the same and a
pool that goes takes its series along.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.metrics_core import Metric

from epp.telemetry.store import Store
from epp.telemetry.table import PREFIX

LABEL = "inference_pool"
OF_PROCESS = frozenset({
    f"{PREFIX}info", f"{PREFIX}extproc_streams_inflight", f"{PREFIX}extproc_streams_total",
    f"{PREFIX}extproc_stream_duration_seconds", "epp_seconds_since_last_stream",
    "epp_spurious_messages_total", "epp_buffered_bytes", "epp_open_exchanges",
    "epp_reaped_requests_total", "epp_leader",
})  # fmt: skip
"""Metrics that no pool has."""
_NAMED = ("name", LABEL)  #: labels that hold a pool's name already


class Merged:
    """A collector for `prometheus_client`'s registry."""

    def __init__(self, own: Store) -> None:
        self.pools: Mapping[str, Store] = {}  #: by the pool's name; replaced whole
        self._own = own

    def collect(self) -> Iterator[Metric]:
        """See `prometheus_client.registry.Collector`. Safe beside writers in another thread."""
        pools = self.pools
        if not pools:
            yield from self._own.collect()
            return
        merged = {metric.name: metric for metric in self._own.collect()}
        for pool, store in pools.items():
            for metric in store.collect(without=OF_PROCESS):
                _label(metric, pool)
                here = merged.setdefault(metric.name, metric)
                if here is not metric:
                    here.samples.extend(metric.samples)
        yield from merged.values()


def _label(metric: Metric, pool: str) -> None:
    metric.samples = [
        sample
        if any(name in sample.labels for name in _NAMED)
        else sample._replace(labels={**sample.labels, LABEL: pool})
        for sample in metric.samples
    ]
