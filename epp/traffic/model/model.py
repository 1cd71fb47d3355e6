"""The nouns of a traffic model: classes of business, and what their traffic is like.

A model is a YAML file, short enough to be written by hand. Fitted ones have tables for laws, and
`Repeat`s where a hand writes families: how long a first prompt's shared beginning is, and how many
requests ago it was last used. That is what a cache sees, whatever the reason.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from epp.traffic.model.laws import Law, Positive, Share, fixed

Process = Literal["poisson", "gamma", "weibull", "even", "seen"]
"""``even``: one conversation in each of as many equal parts of the time. ``seen``: each between two
that the class's shapes were made of, so bursts stay what they were; without shapes as ``even``."""
Count = Annotated[int, Meta(gt=0)]


class Arrivals(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """When conversations begin."""

    rate: Annotated[float, Meta(ge=0)] = 0.0  #: conversations a second, on average
    at_once: Annotated[int, Meta(ge=0)] = 0  #: conversations that begin at the very start
    process: Process = "poisson"
    cv: Positive = 1.0  #: of the gaps, where nothing else is going on; 1.0 for poisson
    envelope: tuple[Annotated[float, Meta(ge=0)], ...] = ()
    """The rate over time, relative to `rate`, in steps; begun again at its end."""
    step_seconds: Positive = 60.0


class Families(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Prefixes that conversations of a class share: system prompts, tools, documents."""

    count: Count = 1
    zipf: Annotated[float, Meta(ge=0)] = 1.0  #: 0: all alike; 1: the second half as often
    tokens: Law = fixed(512)  #: of each


class Repeat(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """First prompts that begin like an earlier request."""

    share: Share  #: of all first prompts
    depth: Law  #: tokens in common
    age: Law  #: requests since what they have in common was last used
    fresh: Law  #: tokens after it


class Later(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Turns of a conversation after the first."""

    continues: tuple[Share, ...] = ()
    """Probability that turn 1, 2, ... is followed by another; the last one holds for all others."""
    think: Law = fixed(30.0)  #: seconds between an answer and the next request
    pace: Annotated[float, Meta(ge=0)] = 0.0
    """How much conversations differ in their think times: standard deviation of the logarithm of
    a factor that each has."""
    answers: Share = 1.0  #: of an answer, that is part of the next prompt
    fresh: Law = fixed(100.0)  #: tokens beyond the prompt and the answer before; may be below 0
    early: tuple[Law, ...] = ()  #: the same, of turn 2, 3, ... where they differ
    cut: Share = 0.0  #: of turns, that lose the end of what was said: compaction, edits
    kept: Law = fixed(0.3)  #: share of the prompt before that these keep
    after: Law = fixed(100.0)  #: tokens that follow what these keep
    most_tokens: Count = 1_000_000  #: of a prompt; a conversation that is longer ends


class Service(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How long answers take, as long as nobody knows better: it spaces turns in a trace."""

    first_seconds: Annotated[float, Meta(ge=0)] = 0.0
    token_seconds: Annotated[float, Meta(ge=0)] = 0.0


class Opening(msgspec.Struct, frozen=True, array_like=True):
    """A first prompt, as it was."""

    depth: int  #: tokens in common with an earlier request
    age: int  #: requests since these were last used
    fresh: int  #: tokens after them
    output: int


class Step(msgspec.Struct, frozen=True, array_like=True):
    """A later turn, as it was."""

    think: float
    back: int  #: turns back to the one that it goes on from; 1 is the turn before, 0 is none
    kept: float  #: share of that one's prompt; of none, tokens in common with any earlier request
    fresh: int  #: tokens after that
    output: int
    age: int = 0  #: of none, requests since these were last used
    served: float | None = None  #: seconds that the answer before took; None: as `Service` says


class Shape(msgspec.Struct, frozen=True, array_like=True):
    """A conversation, as it was: what laws would tell of a few conversations is mostly chance."""

    seen: float  #: seconds from its begin to the trace's end, or for ever if it is 0
    opening: Opening
    steps: tuple[Step, ...] = ()


class Business(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One class of business."""

    name: str  #: what follows a colon tells parts of a class apart
    arrivals: Arrivals
    output: Law  #: tokens of an answer
    of: str = ""  #: the class that its requests are of, if that is not what precedes the colon
    first: Law = fixed(500.0)  #: tokens of a first prompt after its family's prefix
    families: Families | None = None
    repeats: tuple[Repeat, ...] = ()  #: what is left of the shares begins with nothing known
    later: Later = Later()
    shapes: tuple[Shape, ...] = ()  #: instead of `first`, `repeats`, `later`
    service: Service = Service()
    tenants: Count = 1  #: who ask; their rates follow Zipf's law
    tenant_zipf: Annotated[float, Meta(ge=0)] = 1.2

    def __post_init__(self) -> None:
        if sum(each.share for each in self.repeats) > 1.001:
            raise ValueError(f"class {self.name!r}: the shares of its repeats are above 1")
        if self.families is not None and self.repeats:
            raise ValueError(
                f"class {self.name!r} has families and repeats: they exclude each other"
            )

    @property
    def label(self) -> str:
        """The class that its requests are of."""
        return self.of or self.name.partition(":")[0]


class Model(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """All traffic."""

    classes: tuple[Business, ...]
    block_tokens: Count = 64
    source: str = ""  #: where its numbers are from
    facts: dict[str, dict[str, float]] = {}
    """By class, what was measured and is not needed to imitate it: for people."""

    def __post_init__(self) -> None:
        names = [each.name for each in self.classes]
        if not names or len(set(names)) < len(names):
            raise ValueError("a model has one class or more, each with its own name")
