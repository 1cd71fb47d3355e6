"""How arrivals are spread over time.

The coefficient of variation of the gaps alone misses slow drift, and is fooled by clocks that tick
in seconds; so the index of dispersion of counts stands beside it, for several windows, and the
busiest second and minute against the mean.

**Source:** Cox and Lewis, "The Statistical Analysis of Series of Events", 1966: the index of
dispersion is variance over mean of the counts in a window; 1 for a Poisson process.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

TICKING = 2.0  #: requests per distinct time, on average, from which on the clock ticks


def detick(times: Sequence[float] | Floats, seed: int = 1) -> Floats:
    """Return sorted times, spread evenly at random inside the ticks of their clock, if it ticks."""
    known = np.sort(np.asarray(times, dtype=np.float64))
    distinct = np.unique(known)
    if len(distinct) < 3 or len(known) / len(distinct) < TICKING:
        return known
    tick = float(np.median(np.diff(distinct)))
    jitter = np.random.default_rng(seed).random(len(known)) * tick
    spread: Floats = np.sort(known + jitter)
    spread -= spread[0]
    return spread


def variation(times: Floats) -> float:
    """Return the coefficient of variation of the gaps; 1.0 of too few."""
    gaps = np.diff(times)
    if len(gaps) < 2 or not gaps.mean():
        return 1.0
    return float(gaps.std() / gaps.mean())


def dispersion(times: Floats, window: float) -> float:
    """Return the index of dispersion of counts in windows of ``window`` seconds; 1.0 of too few."""
    found = counts(times, window)
    if len(found) < 2 or not found.mean():
        return 1.0
    return float(found.var() / found.mean())


def peak(times: Floats, window: float) -> float:
    """Return the busiest window's count against the mean."""
    found = counts(times, window)
    return float(found.max() / found.mean()) if len(found) and found.mean() else 1.0


def counts(times: Floats, window: float) -> Floats:
    """Return the arrivals in each whole window; in the only one, if there is none."""
    if not len(times):
        return np.empty(0)
    whole = max(int((times[-1] - times[0]) // window), 1)
    edges = times[0] + np.arange(whole + 1) * window
    return np.histogram(times, edges)[0].astype(np.float64)


def local_variation(times: Floats) -> float:
    """Return the coefficient of variation that the gaps have beside all drift of the rate.

    Neighbouring gaps are compared with each other only: for a gamma process of shape k their local
    variation is 3 / (2k + 1), whatever the rate does, and its coefficient of variation 1 / sqrt(k).

    **Source:** Shinomoto, Shima, Tanji, "Differences in spiking patterns among cortical neurons",
    2003.
    """
    gaps = np.diff(times)
    sums = gaps[1:] + gaps[:-1]
    kept = sums > 0
    if kept.sum() < 2:
        return 1.0
    local = 3 * float((((gaps[1:] - gaps[:-1])[kept] / sums[kept]) ** 2).mean())
    shape = max((3 / max(local, 1e-6) - 1) / 2, 0.01)
    return float(1 / np.sqrt(shape))
