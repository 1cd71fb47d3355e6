"""What is decided about a request from outside its body: objective, flow, model rewrite.

**Source:** llm-d's InferenceObjective and InferenceModelRewrite: an objective is named by a
header; a rewrite goes by the name the client used, an exact match before a generic one, the oldest
object first; of several targets one is chosen by weight.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Protocol

import msgspec

from epp import headers
from epp.errors import BadRequest
from epp.model import InferenceRequest


class Rewriter(Protocol):
    """Replaces the model's name inside a body, byte for byte otherwise (see `formats.splice`)."""

    def __call__(self, request: InferenceRequest, target_model: str) -> InferenceRequest:
        """Return the request asking the engine for ``target_model``."""
        ...


class Split(msgspec.Struct, frozen=True):
    """Models that share the requests for one name."""

    models: tuple[str, ...]
    shares: tuple[float, ...]  #: where each model's part ends, increasing, the last is 1.0
    name: str = ""  #: of the object that says so

    def choose(self, chance: float) -> str:
        """Return the model at ``chance``, 0.0 <= chance < 1.0."""
        for model, share in zip(self.models, self.shares, strict=True):
            if chance < share:
                return model
        return self.models[-1]


class Table(msgspec.Struct, frozen=True):
    """All objectives and rewrites at one moment."""

    priorities: Mapping[str, int] = {}  #: by objective name; an unknown name is priority 0
    exact: Mapping[str, Split] = {}  #: by the name the client used
    generic: Split | None = None  #: for every other name

    def split(self, model: str) -> Split | None:
        """Return what shares the requests for ``model``, if a rule says so."""
        return self.exact.get(model, self.generic)


NOTHING = Table()

Tell = Callable[[str, str, str], None]  #: a rewrite's name, the model asked for, the one chosen


def _tell_nobody(name: str, model: str, target: str) -> None:
    """Count nothing."""


class RuleBook:
    """The table in use. It is replaced whole, so that no request sees half a change.

    Args:
        table: to begin with.
        tell: is told of each choice of a model by a rule.
    """

    def __init__(self, table: Table = NOTHING, tell: Tell = _tell_nobody) -> None:
        self.table = table
        self.tell = tell


class Rules:
    """Objectives and model rewrites, applied to a parsed request.

    Args:
        rewrite: how a model's name is replaced in a body.
        book: the objectives and rewrites, which may change at any time.
        chance: spreads requests over the targets of a rewrite.
    """

    def __init__(
        self,
        rewrite: Rewriter,
        book: RuleBook | None = None,
        chance: random.Random | None = None,
    ) -> None:
        self._rewrite = rewrite
        self._book = book or RuleBook()
        self._chance = chance or random.Random()

    def apply(self, request: InferenceRequest) -> InferenceRequest:
        """Fill in objective, priority and flow; ask for another model if a rule says so.

        A rewrite that an operator configured wins over the one a client's header asks for.

        Raises:
            BadRequest: the client's header names a model in bytes that no body can hold.
        """
        asked, table = request.headers, self._book.table
        objective = headers.first(asked, headers.OBJECTIVE)
        request = msgspec.structs.replace(
            request,
            objective=objective,
            priority=table.priorities.get(objective, 0),
            flow=headers.first(asked, headers.FAIRNESS_ID) or headers.DEFAULT_FLOW,
        )
        target = headers.first(asked, headers.MODEL_REWRITE)
        if request.model and (split := table.split(request.model)) is not None:
            target = self._choose(split, request)
        elif not _is_unicode(target):
            raise BadRequest("the model that a header asks for is not UTF-8")
        if target and target != request.model:
            request = self._rewrite(request, target)
        return request

    def _choose(self, split: Split, request: InferenceRequest) -> str:
        """Choose by weight; a session keeps its model."""
        session = request.session or request.headers.get(headers.SESSION_ID, "")
        shared = len(split.models) > 1
        chance = _place(session, split.name, request.model) if session else self._chance.random()
        target = split.choose(chance) if shared else split.models[0]
        self._book.tell(split.name, request.model, target)
        return target


def _is_unicode(text: str) -> bool:
    """Whether it holds no byte that was kept as a lone surrogate (see `extproc.wire`)."""
    return text.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in text)


def _place(*names: str) -> float:
    """Return a number of [0, 1) that is the same for these names in every process."""
    digest = blake2b("\0".join(names).encode("utf-8", "surrogatepass"), digest_size=6).digest()
    return int.from_bytes(digest, "big") / 2**48
