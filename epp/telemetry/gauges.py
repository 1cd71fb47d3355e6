"""Gauges about the pool, computed when the page is read. What no endpoint tells is absent."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean, pstdev

from epp.ledger import Ledger
from epp.model import Endpoint, Load
from epp.telemetry.store import Labels, Live
from epp.telemetry.table import PREFIX

PRODUCER = "inflight-load-producer"

Endpoints = Callable[[], Sequence[Endpoint]]
Fact = Callable[[Load], float | None]

_FACTS: tuple[tuple[str, str, Fact], ...] = (
    ("average_kv_cache_utilization", "std_dev_kv_cache_utilization", lambda load: load.kv_usage),
    ("average_queue_size", "std_dev_queue_size", lambda load: load.queued),
    ("average_running_requests", "std_dev_running_requests", lambda load: load.running),
)


def pool_gauges(pool: str, endpoints: Endpoints, ledger: Ledger) -> Iterator[tuple[str, Live]]:
    """Each metric's name and how to compute it."""
    for mean_name, deviation_name, fact in _FACTS:
        yield PREFIX + mean_name, _statistic(pool, endpoints, fact, fmean)
        yield PREFIX + deviation_name, _statistic(pool, endpoints, fact, pstdev)
    yield (
        f"{PREFIX}per_endpoint_queue_size",
        lambda: {
            (pool, series_name(e)): load.queued
            for e in endpoints()
            if (load := e.load) is not None and load.queued is not None
        },
    )
    counts: tuple[tuple[str, Callable[[Endpoint], bool]], ...] = (
        (f"{PREFIX}ready_endpoints", lambda e: not e.draining and e.reachable),
        ("epp_stale_endpoints", lambda e: e.load is None),
        ("epp_draining_endpoints", lambda e: e.draining),
        ("epp_unreachable_endpoints", lambda e: not e.reachable),
        ("epp_asleep_endpoints", lambda e: e.load is not None and e.load.asleep),
    )
    for name, test in counts:
        yield name, _count(pool, endpoints, test)
    yield (
        f"{PREFIX}inflight_requests",
        lambda: {_in_flight(e): ledger.get(e.id).own for e in endpoints()},
    )
    yield (
        f"{PREFIX}inflight_tokens",
        lambda: {_in_flight(e): ledger.get(e.id).own_tokens for e in endpoints()},
    )


def series_name(endpoint: Endpoint) -> str:
    """An endpoint as the Go router labels it: ``pod-rank-0``; listed addresses are themselves."""
    if endpoint.name == endpoint.address:
        return endpoint.name
    return f"{endpoint.name}-rank-{endpoint.rank}"


def _in_flight(endpoint: Endpoint) -> Labels:
    return (series_name(endpoint), endpoint.namespace, PRODUCER, "", "")


def _count(pool: str, endpoints: Endpoints, test: Callable[[Endpoint], bool]) -> Live:
    return lambda: {(pool,): float(sum(map(test, endpoints())))}


def _statistic(
    pool: str, endpoints: Endpoints, fact: Fact, of: Callable[[Sequence[float]], float]
) -> Live:
    def value() -> Mapping[Labels, float]:
        told = [
            number
            for endpoint in endpoints()
            if endpoint.load is not None and (number := fact(endpoint.load)) is not None
        ]
        return {(pool,): of(told)} if told else {}

    return value
