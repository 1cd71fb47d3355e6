"""``endpoint-attribute-scorer``: score one custom metric linearly.

**Source:** parameters and formula of llm-d's ``endpoint-attribute-scorer``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta

from epp import plugin
from epp.model import Endpoint, InferenceRequest
from epp.schedule import attributes


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Base of the blocks below ``algorithm``."""


class AdaptiveRange(_Part, frozen=True):
    """The range of the candidates' own values. No parameters."""


class FixedRange(_Part, frozen=True):
    min: float  #: in the attribute's unit
    max: float  #: likewise


class Normalization(_Part, frozen=True):
    adaptive_range: AdaptiveRange | None = None
    fixed_range: FixedRange | None = None


class Algorithm(_Part, frozen=True):
    """Direction and range. The range may stand here or under ``normalization``."""

    type: Literal["linear_lower_is_better", "linear_higher_is_better"]
    normalization: Normalization | None = None
    adaptive_range: AdaptiveRange | None = None
    fixed_range: FixedRange | None = None


class EndpointAttributeScorer:
    """Scores ``(value - min) / (max - min)``, or its complement; 0.0 for who tells no value.

    Without a fixed range, equal values score 1.0.
    """

    type: ClassVar[str] = "endpoint-attribute-scorer"
    stability: ClassVar[plugin.Stability] = "alpha"

    class Params(plugin.Params, frozen=True):
        attribute_key: Annotated[str, Meta(min_length=1)]
        algorithm: Algorithm
        producer: str | None = None  #: who publishes it; None for the core metrics extractor

    def __init__(self, params: Params, tools: plugin.Tools) -> None:
        rule = params.algorithm
        nested = rule.normalization or Normalization()
        fixed = rule.fixed_range or nested.fixed_range
        if fixed is not None and (rule.adaptive_range or nested.adaptive_range) is not None:
            raise ValueError("algorithm: set one of adaptiveRange and fixedRange")
        if fixed is not None and fixed.min >= fixed.max:
            raise ValueError(f"algorithm.fixedRange: min {fixed.min} is not below max {fixed.max}")
        self._fixed = fixed
        self._lower = rule.type == "linear_lower_is_better"
        self._key = attributes.key(params.attribute_key, params.producer)

    def score(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> list[float]:
        """See `plugin.Scorer.score`."""
        values = attributes.values(endpoints, self._key)
        known = [value for value in values if value is not None]
        if not known:
            return [0.0] * len(values)
        fixed = self._fixed
        least, most = (min(known), max(known)) if fixed is None else (fixed.min, fixed.max)
        spread = most - least
        if not spread > 0:
            return [0.0 if value is None else 1.0 for value in values]
        zero, sign = (most, -1.0) if self._lower else (least, 1.0)
        return [
            0.0 if value is None else min(max(sign * (value - zero) / spread, 0.0), 1.0)
            for value in values
        ]
