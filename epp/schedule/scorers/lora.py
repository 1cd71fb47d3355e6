"""``lora-affinity-scorer``: prefer engines that have the adapter, then those with a free slot.

**Source:** the published rule of llm-d's and GAIE's ``lora-affinity-scorer``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from epp import plugin
from epp.model import Endpoint, InferenceRequest, LoraInfo


class LoraAffinityScorer:
    """Scores 1.0 active, 0.8 a free slot, 0.6 waiting to be loaded, 0.0 none or unknown."""

    type: ClassVar[str] = "lora-affinity-scorer"
    stability: ClassVar[plugin.Stability] = "beta"

    class Params(plugin.Params, frozen=True):
        """No parameters."""

    def __init__(self, params: Params, tools: plugin.Tools) -> None:
        del params, tools

    def score(self, request: InferenceRequest, endpoints: Sequence[Endpoint]) -> list[float]:
        """See `plugin.Scorer.score`."""
        model = request.target_model
        return [
            0.0 if (load := e.load) is None or load.lora is None else _score(model, load.lora)
            for e in endpoints
        ]


def _score(model: str, lora: LoraInfo) -> float:
    if model in lora.active:
        return 1.0
    if len(lora.active) + len(lora.waiting) < lora.max_active:
        return 0.8
    return 0.6 if model in lora.waiting else 0.0
