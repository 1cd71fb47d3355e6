"""Laws: how a length, a gap or an age is distributed. Written by hand as mixtures, fitted as tables.

One kind for all numbers >= 0: exactly one of ``fixed``, ``mixture`` and ``table`` is given. A
mixture is of lognormals, each told by its median and sigma, the spread of the logarithm: two of
them say "usually a tool's second, sometimes a human's minutes". A Pareto tail may lie over it.

**Source:** Clauset, Shalizi, Newman, "Power-law distributions in empirical data", 2009 (Pareto);
Dempster, Laird, Rubin, "Maximum likelihood from incomplete data via the EM algorithm", 1977.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta

Floats = npt.NDArray[np.float64]

LEVELS = (0.0, .005, .01, .025, *(i / 40 for i in range(2, 39)), .975, .99, .995, .999, 1.0)  # fmt: skip
"""Shares of all values that the entries of a table are not below: the tails closer."""
ROUNDS = 200  #: of EM at most
SETTLED = 1e-6  #: change of the log-likelihood per value that ends EM
SMALLEST = 0.05  #: sigma of a part at least: values that repeat would shrink it to nothing

Positive = Annotated[float, Meta(gt=0)]
Share = Annotated[float, Meta(ge=0, le=1)]


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One lognormal of a mixture."""

    median: Positive
    sigma: Annotated[float, Meta(ge=0)]  #: standard deviation of the natural logarithm
    weight: Positive = 1.0


class Tail(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A Pareto law that a share of the values follows instead."""

    start: Positive
    alpha: Positive
    share: Share


class Law(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A distribution."""

    fixed: float | None = None
    mixture: tuple[Part, ...] = ()
    table: tuple[float, ...] = ()  #: values at `LEVELS`
    tail: Tail | None = None
    low: float | None = None  #: smaller values become it
    high: float | None = None  #: larger values become it

    def __post_init__(self) -> None:
        given = (self.fixed is not None, bool(self.mixture), bool(self.table))
        if sum(given) != 1:
            raise ValueError("a law has exactly one of fixed, mixture and table")
        if self.table and len(self.table) != len(LEVELS):
            raise ValueError(f"a table has {len(LEVELS)} values, not {len(self.table)}")

    def draw(self, random: np.random.Generator, count: int) -> Floats:
        """Return ``count`` values."""
        if self.fixed is not None:
            values = np.full(count, float(self.fixed))
        elif self.table:
            values = np.interp(evenly(random, count), LEVELS, self.table)
        else:
            values = self._mixed(random, count)
        if self.tail is not None:
            far = evenly(random, count) < self.tail.share
            pareto = self.tail.start * (1 - random.random(count)) ** (-1 / self.tail.alpha)
            values = np.where(far, pareto, values)
        if self.low is not None or self.high is not None:
            values = np.clip(values, self.low, self.high)
        return values

    def _mixed(self, random: np.random.Generator, count: int) -> Floats:
        weights = np.array([part.weight for part in self.mixture])
        ends = np.cumsum(weights / weights.sum())[:-1]
        which = np.searchsorted(ends, evenly(random, count))
        medians = np.log([part.median for part in self.mixture])[which]
        sigmas = np.array([part.sigma for part in self.mixture])[which]
        drawn: Floats = np.exp(medians + sigmas * random.standard_normal(count))
        return drawn


def evenly(random: np.random.Generator, count: int) -> Floats:
    """Return numbers from 0 to 1 in random order, one of each ``count``-th part.

    So a short trace has as many long prompts as its law says, not by chance twice as many.
    """
    drawn: Floats = (random.permutation(count) + random.random(count)) / count
    return drawn


def fixed(value: float) -> Law:
    """Return the law of one value."""
    return Law(fixed=value)


def tabled(values: Sequence[float] | Floats) -> Law:
    """Return the law of ``values`` as a table; of none, or of equal ones, as what they are."""
    known = np.asarray(values, dtype=np.float64)
    if not len(known):
        return fixed(0.0)
    if known.min() == known.max():
        return fixed(_short(known[0]))
    return Law(table=tuple(_short(each) for each in np.quantile(known, LEVELS)))


def mixed(values: Sequence[float] | Floats, parts: int = 2) -> Law:
    """Return the law of ``values`` as a mixture of lognormals, by EM; zeros count as the smallest.

    Deterministic: it begins at the quantiles. The largest value limits it.
    """
    known = np.asarray(values, dtype=np.float64)
    positive = known[known > 0]
    if len(positive) < 2 * parts or positive.min() == positive.max():
        return tabled(known)
    logs = np.log(np.maximum(known, positive.min()))
    means = np.quantile(logs, [(i + 0.5) / parts for i in range(parts)])
    sigmas = np.full(parts, max(float(logs.std()), SMALLEST))
    weights = np.full(parts, 1 / parts)
    before = -np.inf
    for _ in range(ROUNDS):
        density = weights * np.exp(-0.5 * ((logs[:, None] - means) / sigmas) ** 2) / sigmas
        total = np.maximum(density.sum(axis=1), 1e-300)
        belongs = density / total[:, None]
        sums = np.maximum(belongs.sum(axis=0), 1e-12)
        weights = sums / len(logs)
        means = (belongs * logs[:, None]).sum(axis=0) / sums
        spread = (belongs * (logs[:, None] - means) ** 2).sum(axis=0) / sums
        sigmas = np.maximum(np.sqrt(spread), SMALLEST)
        likelihood = float(np.log(total).mean())
        if likelihood - before < SETTLED:
            break
        before = likelihood
    found = sorted(zip(means, sigmas, weights, strict=True))
    return Law(
        mixture=tuple(
            Part(_short(np.exp(mean)), _short(sigma), _short(weight))
            for mean, sigma, weight in found
            if weight > 0.001
        ),
        high=_short(float(known.max())),
    )


def _short(value: float) -> float:
    return float(f"{value:.5g}")
