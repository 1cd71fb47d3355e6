"""Logs each decision, with the Go router's keys. Not a plugin: it is there from ``-v 4`` on.

**Source:** keys of llm-d-router's logs.
"""

from __future__ import annotations

import logging

from epp.headers import REQUEST_ID
from epp.model import Ending, InferenceRequest, Pick

log = logging.getLogger(__name__)


class DecisionLog:
    """Writes a line when a request was decided and one when it ended."""

    def picked(self, request: InferenceRequest, pick: Pick) -> None:
        """See `plugin.Observer.picked`."""
        fields = {
            **_keys(request),
            "destination": pick.destination,
            "profile": pick.profile,
        }
        log.debug("picked", extra={"fields": fields})

    def ended(self, request: InferenceRequest, pick: Pick, ending: Ending) -> None:
        """See `plugin.Observer.ended`."""
        fields = {**_keys(request), "outcome": ending.outcome.value, "status": ending.status}
        log.debug("ended", extra={"fields": fields})


def _keys(request: InferenceRequest) -> dict[str, object]:
    return {
        REQUEST_ID: request.id,
        "objectiveKey": request.objective,
        "incomingModelName": request.model,
        "targetModelName": request.target_model,
        "priority": request.priority,
    }
