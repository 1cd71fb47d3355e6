"""The oracle: queues, caches and speeds as they really are, at the moment of the choice.

Not a rival but a bound that no picker can have: nothing is stale, guessed or hidden. It minimises
``W + 1.5 * P + 0.15 s * k / (1 - k)``: W seconds of prefill that wait there, P those of this request,
k the part of the KV cache in use with it. The half more for P keeps a prompt with its cache: the
plain sum copies prefixes until no cache holds anything, near saturation. It does not know what will
be asked next.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Protocol

from epp import plugin
from epp.model import Endpoint, EndpointId, InferenceRequest
from epp.sim.baselines.choosing import Choosing
from epp.sim.model import Config, Request

STICKINESS = 0.5
BARRIER_SECONDS = 0.15
FULLEST = 0.999


class Truth(Protocol):
    """An engine as it really is."""

    config: Config
    backlog: int  #: uncached prompt tokens that are not computed

    def cached(self, request: Request) -> int:
        """Prompt tokens of ``request`` in its cache."""
        ...

    @property
    def usage(self) -> float:
        """Part of its KV blocks in use, 0.0 to 1.0."""
        ...


class Sight(Protocol):
    """What a policy may see that may see everything."""

    engines: Callable[[], Mapping[EndpointId, Truth]]  #: by endpoint
    asked: Callable[[str], Request]  #: what an engine is asked, by the request's id


class Oracle(Choosing):
    """The least true cost."""

    type: ClassVar[str] = "sim-oracle"

    def __init__(self, params: plugin.Params, tools: plugin.Tools) -> None:
        super().__init__(params, tools)
        self._sight: Sight | None = None

    def see(self, sight: Sight) -> None:
        """Look from now on."""
        self._sight = sight

    def choose(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> int:
        """See `Choosing.choose`.

        Raises:
            RuntimeError: it sees nothing: it works in a simulation only.
        """
        if self._sight is None:
            raise RuntimeError("the oracle works in a simulation only")
        asked, engines = self._sight.asked(request.id), self._sight.engines()
        return self.least([_cost(engines.get(each.id), asked) for each in endpoints])


def _cost(engine: Truth | None, request: Request) -> float:
    if engine is None:
        return float("inf")
    timing, config = engine.config.timing, engine.config
    cached = engine.cached(request)
    fresh = request.prompt_tokens - cached
    own = timing.per_prefill * fresh + timing.per_attention * fresh * (cached + fresh / 2)
    waits = timing.per_prefill * engine.backlog
    room = (config.kv_blocks - 1) * config.block_tokens
    full = min(engine.usage + (fresh + request.output_tokens) / room, FULLEST)
    return waits + (1 + STICKINESS) * own + BARRIER_SECONDS * full / (1 - full)
