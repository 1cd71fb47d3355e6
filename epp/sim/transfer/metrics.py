"""Metrics of vLLM's NIXL connector, with its names and buckets.

**Source:** ``/metrics`` of a prefill and a decode server of vLLM 0.32 with ``NixlConnector``.
"""

from __future__ import annotations

from collections.abc import Iterator

from epp.sim.exposition import Histogram

KV_BYTES = 131_072  #: per token, of an 8B model with 8 KV heads in 16 bits
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 5.0)
_BYTES = tuple(float(2 ** (11 + 2 * step)) for step in range(12))
_COUNTS = (10.0, 20.0, 30.0, 50.0, 75.0, 100.0, 200.0, 400.0, 1000.0, 2000.0, 4000.0, 10_000.0)


class TransferMetrics:
    """What one engine counts of KV that comes and goes."""

    def __init__(self) -> None:
        self.failed_transfers = 0
        self.failed_notifications = 0
        self.expired = 0  #: requests whose lease ended unread
        self.late_notifications = 0  #: of requests whose lease had ended
        self._seconds = Histogram("vllm:nixl_xfer_time_seconds", "Time of a transfer.", _SECONDS)
        self._post = Histogram("vllm:nixl_post_time_seconds", "Time to post one.", _SECONDS)
        self._bytes = Histogram("vllm:nixl_bytes_transferred", "Bytes of a transfer.", _BYTES)
        self._count = Histogram("vllm:nixl_num_descriptors", "Blocks of a transfer.", _COUNTS)

    def fetched(self, *, seconds: float, tokens: int, blocks: int) -> None:
        """Count a transfer that went well."""
        self._seconds.observe(seconds)
        self._post.observe(0.0)
        self._bytes.observe(float(tokens * KV_BYTES))
        self._count.observe(float(blocks))

    def lines(self, labels: str, created: float) -> Iterator[str]:
        """Render; ``labels`` are those of all series, in alphabetical order."""
        before, after = labels.split(",")
        for histogram in (self._seconds, self._post, self._bytes, self._count):
            yield from histogram.lines(f"{before},{{le}}{after}", created)
        counters = {
            "failed_transfers": self.failed_transfers,
            "failed_notifications": self.failed_notifications,
            "kv_expired_reqs": self.expired,
            "notifications_after_expiry": self.late_notifications,
        }
        for name, value in counters.items():
            yield f"# HELP vllm:nixl_num_{name}_total KV transfers: {name.replace('_', ' ')}."
            yield f"# TYPE vllm:nixl_num_{name}_total counter"
            yield f"vllm:nixl_num_{name}_total{{{labels}}} {float(value)}"
