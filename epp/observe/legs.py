"""Counts why prompts are computed where they are, and what became of prefills that we ran.

A leg's time is split by what was learned of its endpoint's speed: what the tokens queued before it
took, and the rest. The way of the cache is what passes between the leg's end and the first byte of
a streamed answer. A cache is stranded if an endpoint computed it and nobody has read it, as far as
can be told: it is kept there until its lease ends.
"""

from __future__ import annotations

from epp.model import Ending, InferenceRequest, Outcome, Pick, PrefillLeg
from epp.observe.stages import stages_of
from epp.telemetry.metrics import Metrics

SECONDS = "epp_prefill_leg_seconds"


class LegsObserver:
    """Tells `Metrics` of prefills elsewhere. Not a plugin."""

    def __init__(self, metrics: Metrics) -> None:
        self._store = metrics.store

    def picked(self, request: InferenceRequest, pick: Pick) -> None:
        """See `plugin.Observer.picked`."""
        if pick.stages:
            store = self._store["epp_stages_total"]
            store.number(stages_of(pick), pick.stages).add()

    def ended(self, request: InferenceRequest, pick: Pick, ending: Ending) -> None:
        """See `plugin.Observer.ended`."""
        leg = ending.leg
        if leg is None:
            return
        self._store["epp_prefill_legs_total"].number(leg.reason or "done").add()
        if leg.endpoint is None:
            return
        if stranded(ending):
            self._store["epp_prefill_stranded_total"].number().add()
        for part, seconds in seconds_of(leg, pick, ending).items():
            self._store[SECONDS].histogram(part).observe(seconds)


def stranded(ending: Ending) -> bool:
    """Whether nobody has read the cache that a prefill left, as far as can be told."""
    if ending.outcome is Outcome.ABANDONED:
        return ending.first_byte_at is None
    return ending.outcome is Outcome.FAILED and (ending.status or 500) >= 400


def seconds_of(leg: PrefillLeg, pick: Pick, ending: Ending) -> dict[str, float]:
    """Return what a leg took, by part, as far as it is known."""
    found: dict[str, float] = {}
    expected = pick.expected
    if leg.seconds is not None:
        queue, took = 0.0, leg.seconds - leg.lost
        if expected is not None and expected.speed is not None and leg.endpoint is pick.prefill:
            queue = min(expected.queued * expected.speed.per_token, took)
        found |= {"queue": queue, "compute": took - queue}
    if ending.streamed and ending.first_byte_at is not None:
        found["transfer"] = max(ending.first_byte_at - leg.at, 0.0)
    return found
