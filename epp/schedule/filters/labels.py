"""Filters by pod label: ``label-selector-filter`` and its two older spellings.

All three are plain subsets: an endpoint that does not match must not serve, so a result may be
empty.

**Source:** Kubernetes' LabelSelector semantics (``NotIn`` also matches a pod without the label);
parameter names of llm-d's filters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta

from epp import plugin
from epp.model import Endpoint, InferenceRequest

Test = Callable[[Mapping[str, str]], bool]  #: does an endpoint with these labels match?


class Requirement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One entry of ``matchExpressions``."""

    key: Annotated[str, Meta(min_length=1)]
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: tuple[str, ...] = ()  #: for In and NotIn


class LabelSelectorFilter:
    """Keeps endpoints whose labels match a Kubernetes selector; an empty selector keeps all."""

    type: ClassVar[str] = "label-selector-filter"
    stability: ClassVar[plugin.Stability] = "beta"

    class Params(plugin.Params, frozen=True):
        match_labels: Mapping[str, str] = {}  #: every pair must be there
        match_expressions: tuple[Requirement, ...] = ()  #: every one must hold

    def __init__(self, params: Params, tools: plugin.Tools) -> None:
        equal = [Requirement(k, "In", (v,)) for k, v in params.match_labels.items()]
        self._tests = [_test(rule) for rule in (*equal, *params.match_expressions)]

    def filter(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> list[Endpoint]:
        """See `plugin.Filter.filter`."""
        kept = list(endpoints)
        for test in self._tests:
            kept = [endpoint for endpoint in kept if test(endpoint.labels)]
        return kept


class ByLabelSelectorFilter:
    """The older spelling of ``matchLabels``: its parameters are the labels themselves."""

    type: ClassVar[str] = "by-label-selector"
    stability: ClassVar[plugin.Stability] = "beta"

    Params = dict[str, str]

    def __init__(self, params: Mapping[str, str], tools: plugin.Tools) -> None:
        self._wanted = tuple(params.items())

    def filter(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> list[Endpoint]:
        """See `plugin.Filter.filter`."""
        kept = list(endpoints)
        for key, value in self._wanted:
            kept = [endpoint for endpoint in kept if endpoint.labels.get(key) == value]
        return kept


class ByLabelFilter:
    """An older spelling: one label, its allowed values, and whether it may be missing."""

    type: ClassVar[str] = "by-label"
    stability: ClassVar[plugin.Stability] = "beta"

    class Params(plugin.Params, frozen=True):
        label: Annotated[str, Meta(min_length=1)]
        valid_values: tuple[str, ...] = ()  #: one of these must be its value
        allows_no_label: bool = False  #: keep endpoints without the label

    def __init__(self, params: Params, tools: plugin.Tools) -> None:
        if not params.valid_values and not params.allows_no_label:
            raise ValueError(
                f"by-label on {params.label!r} can match nothing: give validValues or "
                "allowsNoLabel: true"
            )
        self._label = params.label
        self._allowed: frozenset[str | None] = frozenset(params.valid_values)
        if params.allows_no_label:
            self._allowed |= {None}

    def filter(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> list[Endpoint]:
        """See `plugin.Filter.filter`."""
        label, allowed = self._label, self._allowed
        return [endpoint for endpoint in endpoints if endpoint.labels.get(label) in allowed]


def _test(rule: Requirement) -> Test:
    key, values = rule.key, frozenset(rule.values)
    if rule.operator in {"In", "NotIn"} and not values:
        raise ValueError(f"matchExpressions on {key!r}: {rule.operator} needs values")
    if rule.operator in {"Exists", "DoesNotExist"} and values:
        raise ValueError(f"matchExpressions on {key!r}: {rule.operator} takes no values")
    if rule.operator == "In":
        return lambda labels: labels.get(key) in values
    if rule.operator == "NotIn":
        return lambda labels: labels.get(key) not in values
    if rule.operator == "Exists":
        return lambda labels: key in labels
    return lambda labels: key not in labels
