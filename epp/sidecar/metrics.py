"""What a sidecar counts. No label has a client's words or an address."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Metrics:
    """One sidecar's."""

    def __init__(self) -> None:
        one = self.registry = CollectorRegistry()
        self.requests = Counter(
            "epp_sidecar_requests",
            "Requests by way: split, local, fallback (meant to be split, computed here), passed.",
            ["way"],
            registry=one,
        )
        self.fallbacks = Counter(
            "epp_sidecar_fallbacks", "Requests computed here though meant to be split, by why.",
            ["reason"], registry=one,
        )  # fmt: skip
        self.prefills = Counter(
            "epp_sidecar_prefills", "Prefill legs by how they ended.", ["result"], registry=one
        )
        self.refused = Counter(
            "epp_sidecar_refused",
            "Requests that the sidecar answered itself.",
            ["reason"],
            registry=one,
        )
        self.broken = Counter(
            "epp_sidecar_broken_answers", "Answers that the engine did not finish.", registry=one
        )
        self.stranded = Counter(
            "epp_sidecar_stranded_leases",
            "Prefilled caches that no engine was sent for: kept until their lease ends.",
            registry=one,
        )
        self.doubts = Counter(
            "epp_sidecar_cache_doubts",
            "Times that the engine's cache was given up: it may hold what was read after a lease.",
            registry=one,
        )
        self.dropped = Counter(
            "epp_sidecar_dropped_answers",
            "Answers that were asked for again, since they may come of such a cache.",
            registry=one,
        )
        self.prefill_seconds = Histogram(
            "epp_sidecar_prefill_seconds",
            "Prefill legs that went well.",
            buckets=_SECONDS,
            registry=one,
        )
        self.first_byte_seconds = Histogram(
            "epp_sidecar_first_byte_seconds", "From the engine's leg to its first byte.",
            buckets=_SECONDS, registry=one,
        )  # fmt: skip
        self.in_flight = Gauge(
            "epp_sidecar_requests_in_flight", "Requests under way.", registry=one
        )
        self.prefills_in_flight = Gauge(
            "epp_sidecar_prefills_in_flight", "Prefill legs under way.", registry=one
        )
        self.buffered = Gauge("epp_sidecar_buffered_bytes", "Bytes of bodies held.", registry=one)
