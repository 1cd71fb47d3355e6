"""What a request costs by one endpoint alone, and by a pair; in seconds until its first token. Pure.

Alone, the endpoint computes what is queued there and then the prompt, which holds up the requests
that it decodes meanwhile: each of them by about as long, so a share of that is part of the price.
By a pair, the prompt is computed behind the other one's queue, with the same price for what is
decoded there, and its cache moves, which takes longer the farther away it is. The decoding
endpoint's own queue goes by meanwhile.

The queue in which a prompt is computed counts twice: as many as are ahead of a request will, on
average, be behind it when its turn comes, and wait for it as long as it waited for them.

Speeds of endpoints that are alike are the same: of small differences by chance, all traffic would
follow the luckiest.

How long a cache takes is learned, for each distance, from first bytes of streamed answers.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from epp.model import Speed
from epp.schedule.topology import Level
from epp.ttft.fit import PRIOR, Fit
from epp.ttft.forecast import WAY

MOVING: Mapping[Level | None, Speed] = {
    "host": Speed(2e-6, 0.02, 0),
    "rack": Speed(5e-6, 0.02, 0),
    "zone": WAY,
    "region": Speed(4e-5, 0.05, 0),
    None: WAY,
}
"""Believed until answers say otherwise: 128 KB a token over 64, 25 and 12 GB/s, and so on; without
labels, as within a zone."""


class Place(msgspec.Struct, frozen=True):
    """What is known of one endpoint for one request."""

    queued: float  #: work that it computes first, see `epp.ttft.work`
    work: float  #: that of the request's uncached tokens
    running: float = 0.0  #: requests that it decodes
    speed: Speed | None = None  #: None while nothing was learned

    @property
    def queue(self) -> float:
        """Seconds until the prompt's turn there."""
        return (self.speed or PRIOR).per_token * self.queued

    @property
    def own(self) -> float:
        """Seconds that the prompt takes there."""
        return (self.speed or PRIOR).per_token * self.work


def alone(decode: Place, others: float) -> float:
    """Return the price without a pair; ``others``: the weight of each request that is held up."""
    return 2 * decode.queue + decode.own + _held_up(decode, others)


def together(prefill: Place, decode: Place, moving: float, *, others: float = 0.0) -> float:
    """Return the price of a pair; ``moving``: seconds that the cache takes."""
    first = max(prefill.queue + prefill.own, decode.queue) + moving
    return first + prefill.queue + _held_up(prefill, others)


def _held_up(place: Place, others: float) -> float:
    """Return what those pay who are decoded where a prompt is computed."""
    return others * place.running * place.own


class Moving:
    """How long caches take, by distance; learned as answers come."""

    def __init__(self) -> None:
        self._fits = {level: Fit(prior) for level, prior in MOVING.items()}

    def seconds(self, level: Level | None, tokens: float) -> float:
        """Return what ``tokens`` are expected to take."""
        return self._fits[level].seconds(tokens)

    def learn(self, level: Level | None, tokens: float, seconds: float) -> None:
        """Take what an answer took from the prefill's end to its first byte."""
        self._fits[level].learn(tokens, seconds)

    def told(self) -> dict[str, dict[str, float]]:
        """Return what is believed, for people."""
        return {
            level or "unknown": {
                "perToken": fit.speed.per_token,
                "rest": fit.speed.rest,
                "answers": fit.speed.answers,
            }
            for level, fit in self._fits.items()
        }
