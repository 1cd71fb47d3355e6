"""InferenceObjectives and InferenceModelRewrites to the table that `rules` reads. Pure.

**Source:** llm-d's InferenceObjective and InferenceModelRewrite (``llm-d.ai/v1alpha2``, and the
older ``inference.networking.x-k8s.io/v1alpha2``): ``spec.poolRef`` names the pool they are for. Of
a rewrite's targets either all have weights or none has: if some have, the others are never chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import msgspec

from epp.rules import Split, Table

POOL_GROUP = "inference.networking.k8s.io"  #: of a reference that tells none


class _PoolRef(msgspec.Struct):
    name: str
    group: str | None = None


class _ObjectiveSpec(msgspec.Struct, rename="camel"):
    pool_ref: _PoolRef | None = None
    priority: int | None = None


class _Model(msgspec.Struct):
    value: str
    type: str | None = None


class _Match(msgspec.Struct):
    model: _Model | None = None


class _Target(msgspec.Struct, rename="camel"):
    model_rewrite: str
    weight: int | None = None


class _Rule(msgspec.Struct):
    targets: list[_Target] | None = None
    matches: list[_Match] | None = None


class _RewriteSpec(msgspec.Struct, rename="camel"):
    pool_ref: _PoolRef | None = None
    rules: list[_Rule] | None = None


class _Metadata(msgspec.Struct):
    name: str
    generation: int | None = None
    uid: str = ""
    version: str = msgspec.field(default="", name="resourceVersion")


class _Status(msgspec.Struct):
    conditions: list[dict[str, Any]] | None = None


class _Told(msgspec.Struct):
    metadata: _Metadata
    status: _Status | None = None


class PoolName(msgspec.Struct, frozen=True):
    """The pool whose policies count."""

    name: str  #: "": any
    groups: frozenset[str]  #: API groups it may be referred to by


class Policy(msgspec.Struct, frozen=True):
    """One objective or rewrite of a pool of ours, read."""

    name: str
    pool: str = ""  #: which it is for
    created: str = ""  #: RFC 3339, so that text order is time order
    priority: int = 0
    rules: tuple[tuple[tuple[str, ...], Split], ...] = ()  #: models ((): any) and their targets
    problem: str = ""  #: what of it does nothing


class Seen(msgspec.Struct, frozen=True):
    """One object of a collection: what it says, and what its status says of it."""

    name: str
    policy: Policy | None = None  #: None: it is for another pool, or cannot be read
    unreadable: str = ""  #: why it cannot be read
    generation: int = 0
    conditions: tuple[Mapping[str, Any], ...] = ()
    uid: str = ""
    version: str = ""  #: of the whole object


def see(manifest: Mapping[str, Any], read: Callable[[Mapping[str, Any]], Policy | None]) -> Seen:
    """Read one object with ``read``; one that cannot be read says why, and does nothing."""
    try:
        told = msgspec.convert(manifest, _Told)
        policy = read(manifest)
    except ValueError as error:
        return Seen(_about(manifest, "name"), unreadable=str(error))
    about, status = told.metadata, told.status or _Status()
    return Seen(
        about.name,
        policy,
        generation=about.generation or 0,
        conditions=tuple(status.conditions or ()),
        uid=about.uid,
        version=about.version,
    )


def read_objective(manifest: Mapping[str, Any], pool: PoolName) -> Policy | None:
    """Read an objective; None if it is another pool's.

    Raises:
        ValueError: it cannot be read.
    """
    spec = msgspec.convert(manifest.get("spec") or {}, _ObjectiveSpec)
    if spec.pool_ref is None or not _is_for(spec.pool_ref, pool):
        return None
    return Policy(_about(manifest, "name"), spec.pool_ref.name, priority=spec.priority or 0)


def read_rewrite(manifest: Mapping[str, Any], pool: PoolName) -> Policy | None:
    """Read a rewrite; None if it is another pool's.

    Raises:
        ValueError: it cannot be read.
    """
    spec = msgspec.convert(manifest.get("spec") or {}, _RewriteSpec)
    if spec.pool_ref is None or not _is_for(spec.pool_ref, pool):
        return None
    name = _about(manifest, "name")
    rules, problems = [], []
    for index, rule in enumerate(spec.rules or ()):
        split, problem = _split(rule.targets or (), name)
        models = tuple(m.model.value for m in rule.matches or () if m.model is not None)
        if problem:
            problems.append(f"spec.rules[{index}]: {problem}")
        if split is not None and (models or not rule.matches):
            rules.append((models, split))
    return Policy(
        name,
        spec.pool_ref.name,
        _about(manifest, "creationTimestamp"),
        rules=tuple(rules),
        problem="; ".join(problems),
    )


def build_table(objectives: Iterable[Policy], rewrites: Iterable[Policy]) -> Table:
    """Put them together: of two rewrites for one model the older object's counts."""
    exact: dict[str, Split] = {}
    generic: Split | None = None
    for policy in sorted(rewrites, key=lambda each: (each.created, each.name)):
        for models, split in policy.rules:
            for model in models:
                exact.setdefault(model, split)
            if not models and generic is None:
                generic = split
    return Table({each.name: each.priority for each in objectives}, exact, generic)


def _split(targets: Sequence[_Target], name: str) -> tuple[Split | None, str]:
    weights = [target.weight for target in targets]
    if not any(weight is not None for weight in weights):
        weights = [1] * len(targets)
    chosen = [(t.model_rewrite, w) for t, w in zip(targets, weights, strict=True) if w and w > 0]
    problem = "" if len(chosen) == len(targets) else "targets without a weight are never chosen"
    if not chosen:
        return None, problem or "it has no targets"
    total = sum(weight for _, weight in chosen)
    ends = accumulate(weight for _, weight in chosen)
    shares = tuple(end / total for end in ends)
    return Split(tuple(model for model, _ in chosen), shares, name), problem


def _is_for(reference: _PoolRef, pool: PoolName) -> bool:
    named = pool.name in ("", reference.name)
    return named and (reference.group or POOL_GROUP) in pool.groups


def _about(manifest: Mapping[str, Any], key: str) -> str:
    return str((manifest.get("metadata") or {}).get(key) or "")
