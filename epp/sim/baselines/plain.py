"""Balancers that know nothing of prompts: round robin, random, least request, power of two.

**Source:** Envoy's load balancing policies of the same names; the power of two choices is
Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing", 2001: of two endpoints drawn
at random, the one with fewer requests in flight.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from epp import plugin
from epp.model import Endpoint, InferenceRequest
from epp.sim.baselines.choosing import Choosing


class RoundRobin(Choosing):
    """Each endpoint in turn, from a random one on."""

    type: ClassVar[str] = "sim-round-robin"

    def __init__(self, params: plugin.Params, tools: plugin.Tools) -> None:
        super().__init__(params, tools)
        self._next: int | None = None

    def choose(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> int:
        """See `Choosing.choose`."""
        if self._next is None:
            self._next = self._random.randrange(len(endpoints))
        self._next = (self._next + 1) % len(endpoints)
        return self._next


class Random(Choosing):
    """Any endpoint."""

    type: ClassVar[str] = "sim-random"

    def choose(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> int:
        """See `Choosing.choose`."""
        return self._random.randrange(len(endpoints))


class LeastRequest(Choosing):
    """The fewest of this picker's requests in flight, of all endpoints."""

    type: ClassVar[str] = "sim-least-request"

    def choose(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> int:
        """See `Choosing.choose`."""
        return self.least([self.requests(endpoint) for endpoint in endpoints])


class PowerOfTwo(Choosing):
    """The fewest of this picker's requests in flight, of two endpoints drawn at random."""

    type: ClassVar[str] = "sim-p2c"

    def choose(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> int:
        """See `Choosing.choose`."""
        if len(endpoints) == 1:
            return 0
        one, other = self._random.sample(range(len(endpoints)), 2)
        return one if self.requests(endpoints[one]) <= self.requests(endpoints[other]) else other
