"""What replicas of the picker tell each other, on its way."""

from __future__ import annotations

from collections.abc import Sequence

from epp.peers.news import Batch
from epp.sim.fleet.replica import Replica
from epp.sim.fleet.timeline import Timeline

GATHER = 0.5  #: of the time on the way, what happens is gathered to be told together


class Rumours:
    """Takes what replicas tell to all others.

    Args:
        replicas: all of them.
        seconds: until what one did is known to all others, at most.
    """

    def __init__(self, replicas: Sequence[Replica], seconds: float, timeline: Timeline) -> None:
        self._replicas = replicas
        self._seconds = seconds
        self._timeline = timeline
        self._gathering: set[int] = set()  # replicas, by number, that have something to tell

    def notice(self, replica: Replica) -> None:
        """Something happened at a replica."""
        if replica.number not in self._gathering:
            self._gathering.add(replica.number)
            self._timeline.at(self._timeline.now() + GATHER * self._seconds, self._tell, replica)

    def _tell(self, replica: Replica) -> None:
        self._gathering.discard(replica.number)
        if replica.telling is not None:
            then = self._timeline.now() + (1.0 - GATHER) * self._seconds
            self._timeline.at(then, self._heard, replica, replica.telling.take())

    def _heard(self, teller: Replica, batch: Batch) -> None:
        for replica in self._replicas:
            if replica is not teller:
                replica.hearing.hear(str(teller.number), batch.events, 0.0)
