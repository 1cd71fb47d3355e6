"""Consistent hashing: of the session, or of the prompt's beginning with bounded load.

**Source:** session: ketama rings of Envoy (RING_HASH) and HAProxy on a header. Bounded load:
Mirrokni, Thorup, Zadimoghaddam, "Consistent Hashing with Bounded Loads", 2018, as KubeAI does it on
the prompt's first characters: walk the ring from the key on, and take the first endpoint whose
requests, this one included, are at most 1.25 times the mean.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache
from typing import ClassVar

from xxhash import xxh3_64_intdigest

from epp.model import Endpoint, EndpointId, InferenceRequest
from epp.sim.baselines.choosing import Choosing

POINTS = 256  #: of each endpoint on the ring
LOAD_FACTOR = 1.25
PREFIX_BYTES = 4 * 256  #: of the prompt that are hashed: 256 tokens


class _Ring:
    """Endpoints around a circle of 64-bit numbers."""

    def __init__(self, ids: tuple[EndpointId, ...]) -> None:
        points = sorted(
            (xxh3_64_intdigest(f"{each}/{n}".encode()), position)
            for position, each in enumerate(ids)
            for n in range(POINTS)
        )
        self._places = [place for place, _ in points]
        self._owners = [owner for _, owner in points]

    def walk(self, key: int) -> list[int]:
        """Return positions of endpoints in their order from ``key`` on, each once."""
        start = bisect_left(self._places, key)
        return list(dict.fromkeys(self._owners[start:] + self._owners[:start]))

    def owner(self, key: int) -> int:
        """Return the first of `walk`."""
        return self._owners[bisect_left(self._places, key) % len(self._owners)]


@lru_cache(256)
def _ring(ids: tuple[EndpointId, ...]) -> _Ring:
    return _Ring(ids)


def ring_of(endpoints: Sequence[Endpoint]) -> _Ring:
    """Return the ring of these endpoints."""
    return _ring(tuple(endpoint.id for endpoint in endpoints))


class SessionHash(Choosing):
    """The owner of the session's hash, however loaded."""

    type: ClassVar[str] = "sim-session-hash"

    def choose(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> int:
        """See `Choosing.choose`."""
        return ring_of(endpoints).owner(xxh3_64_intdigest((request.session or request.id).encode()))


class PrefixHash(Choosing):
    """The owner of the prompt's beginning, or the next one that is not overloaded."""

    type: ClassVar[str] = "sim-chwbl"

    def choose(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> int:
        """See `Choosing.choose`."""
        key = xxh3_64_intdigest(request.prompt[:PREFIX_BYTES])
        loads = [self.requests(endpoint) for endpoint in endpoints]
        most = math.ceil(LOAD_FACTOR * (sum(loads) + 1) / len(loads))
        order = ring_of(endpoints).walk(key)
        return next((at for at in order if loads[at] + 1 <= most), order[0])
