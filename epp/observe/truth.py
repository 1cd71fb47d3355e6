"""Tells the metrics how true predictions were, and what a request's first byte waited for.

The time to the first byte has three parts that are measured here, and no more: waiting for leave
to go on; our own work, from reading to booking; and all that comes after, which is the gateway,
the network, the engine's queue and its prefill. An engine does not tell these apart by request.
"""

from __future__ import annotations

from epp.model import Ending, Endpoint, InferenceRequest, Pick
from epp.prefix.truth import prediction
from epp.telemetry.truth import Truth


class TruthObserver:
    """Not a plugin: it is always there."""

    def __init__(self, truth: Truth) -> None:
        self._truth = truth

    def picked(self, request: InferenceRequest, pick: Pick) -> None:
        """See `plugin.Observer.picked`."""
        if not request.prefix:
            self._truth.without_knowledge(why_unknown(request))

    def ended(self, request: InferenceRequest, pick: Pick, ending: Ending) -> None:
        """See `plugin.Observer.ended`."""
        if ending.first_byte_at is not None:
            self._truth.first_byte(
                wait=request.waited,
                decision=ending.picked_at - request.arrived_at - request.waited,
                engine=ending.first_byte_at - ending.picked_at,
                streamed=ending.streamed,
            )
        match, endpoint = request.match(), served_by(pick, ending)
        if match is None or endpoint is None:
            return
        found = prediction(request, match, ending, endpoint.id)
        if found is not None:
            self._truth.predicted(endpoint, predicted=found.predicted, cached=found.cached)


def why_unknown(request: InferenceRequest) -> str:
    """Say in a fixed word why nothing is known of a request's prompt."""
    if request.unread:
        return request.unread
    if not request.computed:
        return "not-computed"
    return "no-blocks" if request.prompt else "no-prompt"


def served_by(pick: Pick, ending: Ending) -> Endpoint | None:
    """Return the endpoint whose cache the engine's count is about; None if that is not clear."""
    if pick.prefill is not None:
        return None  # the count is the decoding engine's, whose cache was filled by the other
    if not ending.served:
        return pick.endpoints[0]
    return next((each for each in pick.endpoints if each.address == ending.served), None)
