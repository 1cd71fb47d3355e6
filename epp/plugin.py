"""The extension surface: small protocols and one tool box.

A plugin is a class with a ``type`` (its name in the configuration), a ``Params``
struct (its parameters, camelCase in YAML) and a constructor ``(params, tools)``. What it
can do is decided by the protocols it satisfies; one class may satisfy several.

No plugin names another plugin's class: they meet in the request's typed fields and in the
stores in `Tools`. Missing data never scores well.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import msgspec

from epp.clock import Clock
from epp.ledger import Ledger
from epp.model import (
    Ending,
    Endpoint,
    EndpointId,
    Expected,
    InferenceRequest,
    Pick,
    PrefillLeg,
    Usage,
)

Stability = Literal["alpha", "beta", "stable"]


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Base of every plugin's parameters: strict, immutable, camelCase in YAML."""


class Tools(msgspec.Struct, frozen=True):
    """What a plugin may use of the outside world."""

    clock: Clock
    random: random.Random
    ledger: Ledger  #: requests and uncached tokens in flight, by endpoint; written by the router
    name: str = ""  #: this plugin instance's name in the configuration
    forecaster: Forecaster | None = None  #: knows the endpoints' queues and speeds
    plugins: Mapping[str, Any] = {}
    """Instances built before this one, by name: a handler finds its deciders here. A plugin that
    names another by parameter says so in ``refs(params) -> Sequence[str]`` (see `Referring`)."""


class Plugin(Protocol):
    """What every plugin class has."""

    type: ClassVar[str]
    stability: ClassVar[Stability]


@runtime_checkable
class Filter(Protocol):
    """Removes endpoints that must not serve the request."""

    def filter(
        self, request: InferenceRequest, endpoints: Sequence[Endpoint]
    ) -> Sequence[Endpoint]:
        """Return the endpoints to keep, in the order given; may be empty. Must not mutate."""
        ...


@runtime_checkable
class Scorer(Protocol):
    """Says how good each endpoint is for the request, from one point of view."""

    def score(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> Sequence[float]:
        """Return one score in [0.0, 1.0] per endpoint, in the same order; 1.0 is best."""
        ...


@runtime_checkable
class Picker(Protocol):
    """Chooses among scored endpoints."""

    def pick(self, endpoints: Sequence[Endpoint], scores: Sequence[float]) -> Sequence[Endpoint]:
        """Return the chosen endpoints, best first. ``endpoints`` is never empty."""
        ...


class ProfileResult(msgspec.Struct, frozen=True):
    """What one profile chose."""

    chosen: tuple[Endpoint, ...]  #: best first; never empty
    candidates: tuple[Endpoint, ...]  #: what was left after the filters
    scores: Sequence[float]  #: ``scores[i]``: weighted sum of ``candidates[i]``
    filters: Sequence[Filter] = ()  #: those that ran
    kept: Sequence[Sequence[Endpoint]] = ()  #: what came in, then what each of `filters` left
    scorers: Sequence[tuple[Scorer, float]] = ()  #: those that ran, with their weights
    parts: Sequence[Sequence[float]] = ()  #: ``parts[s][i]``: what ``scorers[s]`` said, unweighted


class Witness(Protocol):
    """Is told of every decision with all that led to it (see `observe.receipts`)."""

    def decided(
        self, request: InferenceRequest, pick: Pick, results: Mapping[str, ProfileResult]
    ) -> None:
        """Note a decision before it is booked; ``results`` by profile. Must not keep ``results``."""
        ...


class Forecaster(Protocol):
    """Foresees the time to first token of a pick (see `ttft.forecast`)."""

    def expect(self, request: InferenceRequest, pick: Pick) -> Expected | None:
        """Say before a pick is booked what a first token will wait for; None if unknown."""
        ...


class Profiles(Protocol):
    """The configured profiles, as a handler runs them over one request's candidates."""

    names: Sequence[str]  #: configured profiles, in the file's order

    def run(self, name: str, request: InferenceRequest) -> ProfileResult:
        """Run one profile.

        Raises:
            errors.Saturated: the filters left nothing.
            KeyError: there is no profile of that name.
        """
        ...


@runtime_checkable
class ProfileHandler(Protocol):
    """Decides which profiles run, in plain sequential code."""

    def handle(self, request: InferenceRequest, profiles: Profiles) -> Pick:
        """Return the pick that the profiles' results add up to."""
        ...


@runtime_checkable
class Preparer(Protocol):
    """Adds a fact that admission needs, from what the request itself says."""

    def prepare(self, request: InferenceRequest) -> InferenceRequest:
        """Return the request with the fact filled in."""
        ...


@runtime_checkable
class Enricher(Protocol):
    """Adds a fact to a request before it is scheduled."""

    def enrich(
        self, request: InferenceRequest, endpoints: Sequence[Endpoint]
    ) -> InferenceRequest | Awaitable[InferenceRequest]:
        """Return the request with the fact filled in; an awaitable only if it must wait."""
        ...


@runtime_checkable
class Observer(Protocol):
    """Listens to exchanges. It must be quick and must not raise."""

    def picked(self, request: InferenceRequest, pick: Pick) -> None:
        """Note that the request is about to be forwarded; same event-loop turn as the pick."""
        ...

    def ended(self, request: InferenceRequest, pick: Pick, ending: Ending) -> None:
        """Note that the exchange is over; called exactly once after `picked`."""
        ...


@runtime_checkable
class Sharer(Protocol):
    """Learns from picks, and so from those of other replicas of the picker, too."""

    def share(self, request: InferenceRequest, pick: Pick) -> bytes:
        """Return what others are to learn from a pick, without content; b"" if nothing."""
        ...

    def heard(self, fact: bytes, endpoint: Endpoint, prefill: Endpoint | None) -> None:
        """Learn what `share` told another replica's, of a request that went to ``endpoint``.

        ``prefill`` computes its prompt, if that is elsewhere.

        Raises:
            ValueError: it cannot be read.
        """
        ...


@runtime_checkable
class Screener(Protocol):
    """Removes endpoints before anything is computed for them."""

    def screen(
        self, request: InferenceRequest, endpoints: Sequence[Endpoint]
    ) -> Sequence[Endpoint]:
        """Return the endpoints to keep, in order."""
        ...


@runtime_checkable
class Admitter(Protocol):
    """May refuse a request before it is scheduled."""

    def admit(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> None:
        """Return if the request may go on; raise an `errors.EppError` if not."""
        ...


@runtime_checkable
class SaturationDetector(Protocol):
    """Says how full the pool is."""

    def saturation(self, endpoints: Sequence[Endpoint]) -> float:
        """Return 0.0 for idle, 1.0 for full, more for over-full; an empty pool is 1.0."""
        ...


@runtime_checkable
class Decider(Protocol):
    """Says whether a stage of a disaggregated request runs elsewhere."""

    def disaggregate(self, request: InferenceRequest, decode: Endpoint) -> bool:
        """Return True to run the stage on another endpoint than ``decode``."""
        ...


class Prefilled(msgspec.Struct, frozen=True):
    """A request whose prompt was computed elsewhere, or is not."""

    body: bytes  #: what the endpoint that decodes is to be sent
    leg: PrefillLeg


class Legs(Protocol):
    """What one request has booked; see `exchange.Exchange`."""

    def prefill_at(self, endpoint: Endpoint) -> None:
        """Move the booking of the prefill to where it is tried next."""
        ...

    def prefilled(self, leg: PrefillLeg) -> None:
        """Note what became of the prefill, and free its booking."""
        ...

    def listen(self, observer: Observer) -> None:
        """Have one more observer hear how it ends."""
        ...


@runtime_checkable
class Prefiller(Protocol):
    """Has prompts computed on the endpoints that picks name, before requests go on."""

    async def prefill(self, request: InferenceRequest, pick: Pick, legs: Legs) -> Prefilled:
        """Have the prompt computed on ``pick.prefill``, or say why not; only a few seconds.

        Called in the event-loop turn of the pick. Cancelled if nobody waits any more.
        """
        ...


@runtime_checkable
class PoolWatcher(Protocol):
    """Keeps knowledge by endpoint, which must die with the endpoint."""

    def forget(self, endpoint_id: EndpointId) -> None:
        """Drop all that is known of this endpoint: it is gone, or its process restarted."""
        ...


@runtime_checkable
class RequestHeaderAdder(Protocol):
    """Adds headers to the request, once it is known where it goes."""

    def request_headers(self, request: InferenceRequest, pick: Pick) -> Mapping[str, str]:
        """Return headers to set on the request, beside those of ``pick``; before it is booked."""
        ...


@runtime_checkable
class AnswerHeaderAdder(Protocol):
    """Adds headers to the answer, where the answer passes through us."""

    def answer_headers(
        self, request: InferenceRequest, pick: Pick, served: str
    ) -> Mapping[str, str]:
        """Return headers to set on the answer; ``served`` is `headers.SERVED`'s value or ''."""
        ...


@runtime_checkable
class AnswerReporter(Protocol):
    """Tells the gateway numbers about a whole answer, where the answer passes through us."""

    def report(
        self, request: InferenceRequest, pick: Pick, usage: Usage
    ) -> Mapping[str, Mapping[str, float]]:
        """Return dynamic metadata for the answer's last message, by namespace, then by name."""
        ...


@runtime_checkable
class Referring(Protocol):
    """A plugin class whose parameters name other plugin instances."""

    @staticmethod
    def refs(params: Any) -> Sequence[str]:
        """Return the names of the instances that must be built before this one."""
        ...


@runtime_checkable
class ProfileRunner(Protocol):
    """A profile handler class that cannot work without certain profiles."""

    @staticmethod
    def needed_profiles(params: Any) -> Sequence[str]:
        """Return the names of the profiles that must be configured."""
        ...


@runtime_checkable
class StateDumper(Protocol):
    """Shows what it knows on ``/debug/plugins/state``: numbers, never a part of a prompt."""

    def dump_state(self) -> Mapping[str, Any]:
        """Return a JSON-able summary."""
        ...


def type_of(made: Any) -> str:
    """Return the type of a plugin instance."""
    return str(getattr(made, "type", type(made).__name__))


PluginFactory = Callable[[Any, Tools], Any]
