"""Tells the metrics how true predictions were, and what a request's first byte waited for.

The time to the first byte has three parts that are measured, of every answer; of a streamed one
the part after the pick is split by the speed learned of the engine, see `ttft.parts`.
"""

from __future__ import annotations

from epp.model import ROLE, Ending, Endpoint, InferenceRequest, Pick
from epp.prefix.truth import prediction
from epp.telemetry.truth import Truth
from epp.ttft.parts import expected_seconds, measured_parts


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
        self._tell_first_byte(request, pick, ending)
        match, endpoint = request.match(), served_by(pick, ending)
        if match is None or endpoint is None:
            return
        found = prediction(request, match, ending, endpoint.id)
        if found is not None:
            self._truth.predicted(endpoint, predicted=found.predicted, cached=found.cached)

    def _tell_first_byte(self, request: InferenceRequest, pick: Pick, ending: Ending) -> None:
        measured = measured_parts(request, pick, ending)
        if measured is None:
            return
        self._truth.first_byte(measured, priority=request.priority, streamed=ending.streamed)
        expected = pick.expected
        if measured.rest is None or expected is None or expected.speed is None:
            return  # nothing was foreseen of this answer
        seconds = expected_seconds(expected, expected.speed)
        computing = pick.prefill or pick.endpoints[0]
        self._truth.foreseen(
            seconds, measured, priority=request.priority, role=computing.labels.get(ROLE, "")
        )


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
