"""A line through (prompt tokens, seconds), learned answer by answer.

``seconds = rest + per_token * tokens`` by least squares, where older answers count less and less.
As long as the tokens seen hardly differ, they say nothing about the slope: it stays near the
prior's then, and the line still goes through the middle of what was seen.

Endpoints that are alike must look alike: of small differences by chance, all traffic would follow
the luckiest. So what one endpoint taught differs from what all taught only as far as it is sure.
"""

from __future__ import annotations

from epp.model import Speed

PRIOR = Speed(per_token=1 / 16_000, rest=0.02, answers=0)
"""A 32B model on two H100: believed until answers say otherwise, never told as something known."""

KEPT = 0.98  #: weight of what was learned before, at each answer: the last fifty or so count
SPREAD = 512.0 * 512.0  #: squared tokens of spread by which the prior's slope counts
FASTEST, SLOWEST = 1e-6, 1e-2  #: seconds per token that are believed at all
SURE = 8  #: answers after which an outlier is one
OUTLIER = 4.0  #: times the expected seconds, and
DOUBT = 3.0  #: standard errors within which an endpoint is like all others
LEAST = 3.0  #: weight of answers below which a line is chance
NOISE = 0.1  #: of the mean seconds, that answers are off at least
GRACE = 0.1  #: seconds more: above it an answer counts as this slow


class Fit:
    """What was learned of one endpoint, or of all together. O(1) in time and memory."""

    __slots__ = ("_prior", "_weight", "_x", "_xx", "_xy", "_y", "_yy", "speed")

    def __init__(self, prior: Speed = PRIOR) -> None:
        self.speed = Speed(prior.per_token, prior.rest, 0)
        self._prior = prior.per_token
        self._weight = self._x = self._y = self._xx = self._xy = self._yy = 0.0

    def seconds(self, tokens: float) -> float:
        """Return what ``tokens`` are expected to take."""
        return self.speed.rest + self.speed.per_token * tokens

    def learn(self, tokens: float, seconds: float, weight: float = 1.0) -> None:
        """Take an answer whose first byte came after ``seconds``, with ``tokens`` to compute.

        Args:
            tokens: >= 0.
            seconds: >= 0.
            weight: in (0, 1]: how much it says.
        """
        known = self.speed
        if known.answers >= SURE:
            usual = known.rest + known.per_token * tokens
            seconds = min(seconds, OUTLIER * usual + GRACE)
        kept = 1.0 - weight * (1.0 - KEPT)
        self._weight = self._weight * kept + weight
        self._x = self._x * kept + weight * tokens
        self._y = self._y * kept + weight * seconds
        self._xx = self._xx * kept + weight * tokens * tokens
        self._xy = self._xy * kept + weight * tokens * seconds
        self._yy = self._yy * kept + weight * seconds * seconds
        per_token, rest = self._line()
        self.speed = Speed(per_token, rest, known.answers + 1)

    def within(self, every: Speed) -> Speed:
        """Return this line, as near to that of ``every`` endpoint as its own errors allow.

        Within `DOUBT` standard errors it is the same; far outside it is its own.
        """
        own = self.speed
        if own.answers < SURE or self._weight < LEAST:
            return Speed(every.per_token, every.rest, own.answers)
        slope, rest = self._errors()
        return Speed(
            _drawn(own.per_token, every.per_token, slope),
            max(_drawn(own.rest, every.rest, rest), 0.0),
            own.answers,
        )

    def _errors(self) -> tuple[float, float]:
        """Squared standard errors of the slope and of the rest."""
        slope, rest, n = self.speed.per_token, self.speed.rest, self._weight
        missed = self._yy + slope * slope * self._xx + rest * rest * n
        missed += 2.0 * (slope * rest * self._x - slope * self._xy - rest * self._y)
        middle, least = self._x / n, (NOISE * self._y / n) ** 2
        variance = max(missed / n, least)
        spread = max(self._xx - self._x * middle, 0.0) + SPREAD
        return variance / spread, variance * (1.0 / n + middle * middle / spread)

    def _line(self) -> tuple[float, float]:
        tokens, seconds = self._x / self._weight, self._y / self._weight
        spread = max(self._xx - self._x * tokens, 0.0)
        together = self._xy - self._x * seconds
        slope = _believed((together + SPREAD * self._prior) / (spread + SPREAD))
        rest = seconds - slope * tokens
        if rest >= 0.0:
            return slope, rest
        return _believed(self._xy / max(self._xx, 1.0)), 0.0  # steeper than a line through nothing


def _drawn(own: float, every: float, error: float) -> float:
    """Draw ``own`` to ``every`` by its squared standard error (positive-part James-Stein)."""
    apart = (own - every) ** 2
    doubt = DOUBT * DOUBT * error
    return every if apart <= doubt else every + (own - every) * (1.0 - doubt / apart)


def _believed(per_token: float) -> float:
    return min(max(per_token, FASTEST), SLOWEST)
