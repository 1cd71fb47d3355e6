"""``endpoint-attribute-filter``: keep endpoints by one custom metric.

**Source:** parameters and rules of llm-d's ``endpoint-attribute-filter``.
"""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta

from epp import plugin
from epp.model import Endpoint, InferenceRequest
from epp.schedule import attributes

OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "LessThan": operator.lt,
    "LessThanOrEqual": operator.le,
    "GreaterThan": operator.gt,
    "GreaterThanOrEqual": operator.ge,
    "Equal": operator.eq,
    "NotEqual": operator.ne,
}
Operator = Literal[
    "LessThan", "LessThanOrEqual", "GreaterThan", "GreaterThanOrEqual", "Equal", "NotEqual"
]


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Base of the blocks below ``algorithm``."""


class Threshold(_Part, frozen=True):
    operator: Operator
    value: float  #: in the attribute's unit


class Range(_Part, frozen=True):
    min: float  #: kept too
    max: float  #: kept too


class TopK(_Part, frozen=True):
    k: Annotated[int, Meta(ge=1)]  #: endpoints
    higher_is_better: bool = True


class Percentile(_Part, frozen=True):
    percentile: Annotated[float, Meta(ge=0, le=100)]  #: of the candidates' values
    higher_is_better: bool = True


class Algorithm(_Part, frozen=True):
    """What to compare with; the block of the same name as ``type`` holds its figures."""

    type: Literal["threshold", "range", "topK", "percentile"]
    threshold: Threshold | None = None
    range: Range | None = None
    top_k: TopK | None = None
    percentile: Percentile | None = None
    operator: Operator | None = None  #: the threshold's, in the flat spelling
    value: float | None = None  #: likewise


class EndpointAttributeFilter:
    """Keeps endpoints whose attribute passes; ``onMissing`` decides on those that tell none."""

    type: ClassVar[str] = "endpoint-attribute-filter"
    stability: ClassVar[plugin.Stability] = "alpha"

    class Params(plugin.Params, frozen=True):
        attribute: Annotated[str, Meta(min_length=1)]
        algorithm: Algorithm
        producer: str | None = None  #: who publishes it; None for the core metrics extractor
        on_missing: Literal["Pass", "Fail"] = "Pass"
        fallback_on_empty: bool = False  #: keep all rather than none

    def __init__(self, params: Params, tools: plugin.Tools) -> None:
        if "/" in params.attribute and params.producer is None:
            raise ValueError(f"attribute {params.attribute!r} contains '/': set producer too")
        self._key = attributes.key(params.attribute, params.producer)
        self._keep_missing = params.on_missing == "Pass"
        self._fallback = params.fallback_on_empty
        self._passes = _rule(params.algorithm)

    def filter(
        self, request: InferenceRequest, endpoints: Sequence[Endpoint]
    ) -> Sequence[Endpoint]:
        """See `plugin.Filter.filter`."""
        values = attributes.values(endpoints, self._key)
        passes = self._passes([value for value in values if value is not None])
        kept = [
            endpoint
            for endpoint, value in zip(endpoints, values, strict=True)
            if (self._keep_missing if value is None else passes(value))
        ]
        return kept if kept or not self._fallback else endpoints


Rule = Callable[[Sequence[float]], Callable[[float], bool]]
"""From all the values told to a test of one of them."""


def _rule(algorithm: Algorithm) -> Rule:
    if algorithm.type == "threshold":
        return _threshold(algorithm)
    if algorithm.type == "range" and (span := algorithm.range) is not None:
        least, most = span.min, span.max
        if least > most:
            raise ValueError(f"algorithm.range: min {least} is above max {most}")
        return lambda _: lambda value: least <= value <= most
    if algorithm.type == "topK" and (top := algorithm.top_k) is not None:
        return lambda known: _at_rank(known, top.k, higher=top.higher_is_better)
    if algorithm.type == "percentile" and (cut := algorithm.percentile) is not None:
        return lambda known: _percentile(known, cut)
    raise ValueError(f"algorithm.{algorithm.type} is missing: it holds the figures to compare with")


def _threshold(algorithm: Algorithm) -> Rule:
    rule = algorithm.threshold
    if rule is None:
        if algorithm.operator is None or algorithm.value is None:
            raise ValueError("algorithm.threshold needs operator and value")
        rule = Threshold(algorithm.operator, algorithm.value)
    compare, bound = OPERATORS[rule.operator], rule.value
    return lambda _: lambda value: compare(value, bound)


def _at_rank(known: Sequence[float], k: int, *, higher: bool) -> Callable[[float], bool]:
    """Test for the ``k`` best values; of equal ones at the edge, the first come."""
    left = Counter(sorted(known, reverse=higher)[:k])

    def passes(value: float) -> bool:
        left[value] -= 1
        return left[value] >= 0

    return passes


def _percentile(known: Sequence[float], rule: Percentile) -> Callable[[float], bool]:
    """Nearest rank: the value at ``ceil(P / 100 * N)``, counted from 1, of those in order."""
    if not known:
        return lambda _: False
    rank = max(1, math.ceil(rule.percentile / 100 * len(known)))
    cutoff = sorted(known)[rank - 1]
    if rule.higher_is_better:
        return lambda value: value >= cutoff
    return lambda value: value <= cutoff
