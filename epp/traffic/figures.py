"""What a run adds up to: hit rate, TTFT, errors, per engine and in all. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec


class Sample(msgspec.Struct, frozen=True):
    """One request as its client saw it. Times in seconds."""

    engine: str = ""
    ttft: float | None = None  #: None if no token came
    duration: float | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    error: str = ""  #: "" if the answer was whole


class Figures(msgspec.Struct, frozen=True):
    """Sums of samples."""

    requests: int
    errors: int
    hit_rate: float | None  #: cached / prompt tokens, 0.0 to 1.0
    ttft_p50_ms: float | None
    ttft_p99_ms: float | None


def figures(samples: Sequence[Sample]) -> Figures:
    """Add up ``samples``; what nothing is known of is None."""
    prompt = sum(sample.prompt_tokens for sample in samples)
    cached = sum(sample.cached_tokens for sample in samples)
    ttfts = [sample.ttft * 1000 for sample in samples if sample.ttft is not None]
    return Figures(
        requests=len(samples),
        errors=sum(1 for sample in samples if sample.error),
        hit_rate=cached / prompt if prompt else None,
        ttft_p50_ms=percentile(ttfts, 50),
        ttft_p99_ms=percentile(ttfts, 99),
    )


def by_engine(samples: Sequence[Sample]) -> dict[str, Figures]:
    """`figures` for each engine that answered, by name."""
    names = sorted({sample.engine for sample in samples if sample.engine})
    return {name: figures([s for s in samples if s.engine == name]) for name in names}


def percentile(values: Sequence[float], percent: float) -> float | None:
    """Nearest-rank percentile: the smallest value that ``percent`` % of all do not exceed."""
    if not values:
        return None
    rank = max(math.ceil(percent / 100 * len(values)), 1)
    return sorted(values)[rank - 1]
