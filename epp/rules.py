"""What is decided about a request from outside its body: objective, flow, model rewrite."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec

from epp import headers
from epp.model import InferenceRequest


class Rewriter(Protocol):
    """Replaces the model's name inside a body, byte for byte otherwise (see `formats.splice`)."""

    def __call__(self, request: InferenceRequest, target_model: str) -> InferenceRequest:
        """Return the request asking the engine for ``target_model``."""
        ...


class Rules:
    """Objectives and model rewrites, applied to a parsed request.

    Args:
        rewrite: how a model's name is replaced in a body.
        priorities: priority by objective name; an unknown name is priority 0.
    """

    def __init__(self, rewrite: Rewriter, priorities: Mapping[str, int] | None = None) -> None:
        self._rewrite = rewrite
        self._priorities = priorities or {}

    def apply(self, request: InferenceRequest) -> InferenceRequest:
        """Fill in objective, priority and flow; ask for another model if the headers say so."""
        asked = request.headers
        objective = headers.first(asked, headers.OBJECTIVE)
        request = msgspec.structs.replace(
            request,
            objective=objective,
            priority=self._priorities.get(objective, 0),
            flow=headers.first(asked, headers.FAIRNESS_ID) or headers.DEFAULT_FLOW,
        )
        target = headers.first(asked, headers.MODEL_REWRITE)
        if target and target != request.model:
            request = self._rewrite(request, target)
        return request
