"""What each pod got in the last minute or two: requests, errors, prompt blocks held there.

Two generations of counts: the running minute and the one before. Turning costs nothing per pod,
and old traffic fades without a timer for each. Hot path: about 1 us a request.
"""

from __future__ import annotations

import msgspec

from epp.clock import Clock
from epp.model import Ending, Endpoint, EndpointId, InferenceRequest, Outcome, Pick

GENERATION_SECONDS = 60.0


class Recent(msgspec.Struct):
    """Counts of one pod, or of all."""

    requests: int = 0  #: sent there
    ended: int = 0
    errors: int = 0  #: of `ended`: the engine or the gateway answered with an error
    blocks: int = 0  #: full prompt blocks of the requests
    held: int = 0  #: of `blocks`: believed to be held there
    seconds: float = 0.0  #: over how long


class Traffic:
    """An observer; see `plugin.Observer`."""

    def __init__(self, clock: Clock) -> None:
        """Count from now on."""
        self.total = Recent()  #: since the start
        self._clock = clock
        self._began = self._turned = clock.now()  #: of the older and of the running generation
        self._now: dict[EndpointId, Recent] = {}
        self._past: dict[EndpointId, Recent] = {}

    def picked(self, request: InferenceRequest, pick: Pick) -> None:
        """See `plugin.Observer.picked`."""
        target = pick.endpoints[0]
        match = request.match()
        blocks = len(match.blocks) if match else 0
        held = min(match.held.get(target.id, 0), blocks) if match else 0
        for counts in (self.total, self._of(target)):
            counts.requests += 1
            counts.blocks += blocks
            counts.held += held

    def ended(self, request: InferenceRequest, pick: Pick, ending: Ending) -> None:
        """See `plugin.Observer.ended`."""
        failed = ending.outcome is Outcome.FAILED
        for counts in (self.total, self._of(_server(pick, ending))):
            counts.ended += 1
            counts.errors += failed

    def turn(self) -> None:
        """Start a new generation if the running one is old enough."""
        now = self._clock.now()
        if now - self._turned >= GENERATION_SECONDS:
            self._past, self._now = self._now, {}
            self._began, self._turned = self._turned, now

    def recent(self, endpoint_id: EndpointId) -> Recent:
        """What this pod got in the last one to two minutes."""
        now, past = self._now.get(endpoint_id, _NONE), self._past.get(endpoint_id, _NONE)
        return Recent(
            now.requests + past.requests,
            now.ended + past.ended,
            now.errors + past.errors,
            now.blocks + past.blocks,
            now.held + past.held,
            self._clock.now() - self._began,
        )

    def forget(self, endpoint_id: EndpointId) -> None:
        """The pod is gone, or another process: so are its counts."""
        self._now.pop(endpoint_id, None)
        self._past.pop(endpoint_id, None)

    def _of(self, endpoint: Endpoint) -> Recent:
        counts = self._now.get(endpoint.id)
        if counts is None:
            counts = self._now[endpoint.id] = Recent()
        return counts


_NONE = Recent()


def _server(pick: Pick, ending: Ending) -> Endpoint:
    """Who answered: a fallback, if told so."""
    first = pick.endpoints[0]
    if not ending.served or ending.served == first.address:
        return first
    return next((e for e in pick.endpoints if e.address == ending.served), first)
