"""``context-length-aware``: match prompts to endpoints made for their length.

A pod's label says which prompt lengths it is for, as ``min-max`` in tokens.

**Source:** the published formula of llm-d's plugin of the same name. For a prompt of ``t``
tokens and a range of width ``w``:

    inside   0.3 + 0.7 * (0.7 / (1 + w / 10000) + 0.3 * (max - t) / w)
    outside  0.3 / (1 + distance / 1000)
    no label 0.5
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated, ClassVar

from msgspec import Meta

from epp import plugin
from epp.model import Endpoint, InferenceRequest

LABEL = "llm-d.ai/context-length-range"


class ContextLengthAware:
    """Scores how well an endpoint's range fits the prompt; may also filter by it.

    As a filter it keeps endpoints whose range holds the prompt and those without a range; all,
    if that leaves none. A label that is no range counts as no label.
    """

    type: ClassVar[str] = "context-length-aware"
    stability: ClassVar[plugin.Stability] = "beta"

    class Params(plugin.Params, frozen=True):
        label: Annotated[str, Meta(min_length=1)] = LABEL  #: holds prompt tokens as ``min-max``
        enable_filtering: bool = False  #: filter too

    def __init__(self, params: Params, tools: plugin.Tools) -> None:
        self._label = params.label
        self._filters = params.enable_filtering

    def filter(
        self, request: InferenceRequest, endpoints: Sequence[Endpoint]
    ) -> Sequence[Endpoint]:
        """See `plugin.Filter.filter`."""
        if not self._filters:
            return endpoints
        tokens, label = request.prompt_tokens, self._label
        kept = [e for e in endpoints if _holds(_span(e.labels.get(label)), tokens)]
        return kept or endpoints

    def score(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> list[float]:
        """See `plugin.Scorer.score`."""
        tokens, label = request.prompt_tokens, self._label
        return [_fit(_span(endpoint.labels.get(label)), tokens) for endpoint in endpoints]


Span = tuple[int, int]  #: least and most tokens, both included


@lru_cache(maxsize=4096)
def _span(label: str | None) -> Span | None:
    least, dash, most = (label or "").partition("-")
    if not dash or not least.strip().isdecimal() or not most.strip().isdecimal():
        return None
    span = int(least), int(most)
    return span if span[0] <= span[1] else None


def _holds(span: Span | None, tokens: int) -> bool:
    return span is None or span[0] <= tokens <= span[1]


def _fit(span: Span | None, tokens: int) -> float:
    if span is None:
        return 0.5
    least, most = span
    if tokens < least:
        return 0.3 / (1.0 + (least - tokens) / 1000.0)
    if tokens > most:
        return 0.3 / (1.0 + (tokens - most) / 1000.0)
    width = most - least
    headroom = (most - tokens) / width if width else 0.0
    return 0.3 + 0.7 * (0.7 / (1.0 + width / 10000.0) + 0.3 * headroom)
