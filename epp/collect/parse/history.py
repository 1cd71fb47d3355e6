"""What consecutive readings of one endpoint say together. Pure.

* A process that started at another time, or whose work counter went back, is another process:
  its caches are empty.
* Fewer data-parallel ranks than were seen before is a part of the truth: the numbers of such a
  page are not told. If it stays so, the endpoint really has fewer ranks.
* An engine that falls asleep loses its cache.
"""

from __future__ import annotations

import msgspec

from epp.collect.parse.engines import Reading
from epp.model import Load

START_SLACK = 1.5  #: seconds; a start time computed from uptime wanders this much at most
PARTIAL_SECONDS = 30.0  #: after this long, fewer ranks are all there are


class Conclusion(msgspec.Struct, frozen=True):
    """What a reading means, given those before."""

    load: Load
    restarted: bool  #: caches are void: another process, or asleep
    partial: bool  #: some ranks were missing


class History:
    """Of one endpoint."""

    def __init__(self) -> None:
        self._ranks = 0
        self._partial_since: float | None = None
        self._started: float | None = None
        self._work: float | None = None
        self._asleep = False

    def take(self, reading: Reading) -> Conclusion:
        """Note a reading; readings come in the order of ``load.at``."""
        restarted = self._is_another(reading)
        if restarted:
            self._ranks = 0
        partial = self._is_partial(reading)
        if not partial:
            self._started = self._started if reading.started is None else reading.started
            self._work = reading.work
        load = reading.load
        slept, self._asleep = load.asleep and not self._asleep, load.asleep
        if partial:
            load = msgspec.structs.replace(
                load, queued=None, running=None, kv_usage=None, counts=None
            )
        return Conclusion(load, restarted or slept, partial)

    def _is_another(self, reading: Reading) -> bool:
        if reading.started is not None and self._started is not None:
            return reading.started > self._started + START_SLACK
        if reading.work is None or self._work is None or reading.ranks < self._ranks:
            return False
        return reading.work < self._work

    def _is_partial(self, reading: Reading) -> bool:
        now = reading.load.at
        if reading.ranks < self._ranks:
            if self._partial_since is None:
                self._partial_since = now
            if now - self._partial_since < PARTIAL_SECONDS:
                return True
        self._ranks = reading.ranks
        self._partial_since = None
        return False
