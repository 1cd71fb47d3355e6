"""Numbers about a class of traffic, for people: arrivals, lengths, turns, and what repeats."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from epp.traffic.sessions import Turn
from epp.traffic.study.arrivals import detick, dispersion, local_variation, peak, variation
from epp.traffic.trace import Trace

WINDOWS = (1.0, 10.0, 60.0)  #: seconds
LEVELS = (50, 95, 99)  #: percentiles
SHARERS = 2  #: conversations that make a family


def facts(talks: Sequence[Sequence[Turn]], trace: Trace) -> dict[str, float]:
    """Return numbers about the conversations ``talks`` of ``trace``."""
    records = sorted((turn.record for talk in talks for turn in talk), key=lambda each: each.at)
    times = detick([record.at for record in records])
    found = {
        "requests": len(records),
        "conversations": len(talks),
        "requests_per_second": len(records) / trace.seconds if trace.seconds else 0.0,
        "gap_cv": variation(times),
        "gap_cv_beside_drift": local_variation(times),
    }
    for window in WINDOWS:
        found[f"dispersion_{window:.0f}s"] = dispersion(times, window)
        found[f"peak_{window:.0f}s"] = peak(times, window)
    found |= _levels("input_tokens", [record.input_tokens for record in records])
    found |= _levels("output_tokens", [record.output_tokens for record in records])
    found["single_turn_share"] = sum(len(talk) == 1 for talk in talks) / max(len(talks), 1)
    found |= _levels("turns", [len(talk) for talk in talks])
    gaps = [b.record.at - a.record.at for talk in talks for a, b in pairwise(talk)]
    found |= _levels("turn_gap_seconds", gaps)
    found |= _families(talks, trace)
    return {name: float(f"{value:.4g}") for name, value in found.items()}


def _levels(name: str, values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {}
    cut = np.percentile(values, LEVELS)
    found = {f"{name}_p{level}": float(value) for level, value in zip(LEVELS, cut, strict=True)}
    return {**found, f"{name}_mean": float(np.mean(values))}


def _families(talks: Sequence[Sequence[Turn]], trace: Trace) -> dict[str, float]:
    """Prefixes that several conversations begin with: how many, how long, how popular."""
    chains = [talk[0].record.hash_ids for talk in talks]
    users = Counter(each for ids in chains for each in ids)
    ends: Counter[int] = Counter()
    depths: list[int] = []
    for ids in chains:
        shared = next((i for i, each in enumerate(ids) if users[each] < SHARERS), len(ids))
        if shared:
            ends[ids[shared - 1]] += 1
            depths.append(shared * trace.block_tokens)
    if not depths:
        return {"families": 0}
    found = {
        "families": len(ends),
        "family_share": len(depths) / len(chains),
        "family_zipf": _slope([count for _, count in ends.most_common()]),
    }
    return found | _levels("family_tokens", depths)


def _slope(sizes: Sequence[int]) -> float:
    """Return Zipf's exponent of sizes, the largest first: of their logarithm over that of the rank."""
    if len(sizes) < 3:
        return 0.0
    ranks = np.log(np.arange(1, len(sizes) + 1))
    return float(-np.polyfit(ranks, np.log(sizes), 1, w=np.sqrt(sizes))[0])
