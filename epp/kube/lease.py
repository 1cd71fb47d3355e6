"""Leader election by a Lease: at most one candidate leads at a time.

A leader counts its time from the moment it *began* the last successful renewal, by its own clock,
and gives up ``renew`` seconds later, whether its task gets to run or not; others wait ``lease``
seconds, which is longer, from the moment they saw that renewal. Writes carry the version
that was read, so that of two who try at once one is refused.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from datetime import UTC, datetime
from random import Random
from typing import Any
from uuid import uuid4

import msgspec

from epp.clock import Clock, SystemClock
from epp.kube.client import Kube
from epp.kube.errors import KubeError
from epp.kube.lease_record import LeaseTimes, Seen, may_take, new_lease, released, see, taken

log = logging.getLogger(__name__)

JITTER = 0.2  #: a candidate's pauses are up to that much longer


def own_identity() -> str:
    """A name that no other candidate has, nor this pod's former process."""
    return f"{os.environ.get('POD_NAME') or socket.gethostname()}_{uuid4()}"


class Candidate(msgspec.Struct, frozen=True):
    """Who stands for which Lease."""

    namespace: str
    name: str
    identity: str
    times: LeaseTimes = LeaseTimes()

    @property
    def collection(self) -> str:
        return f"/apis/coordination.k8s.io/v1/namespaces/{self.namespace}/leases"

    @property
    def path(self) -> str:
        return f"{self.collection}/{self.name}"


class Means(msgspec.Struct, frozen=True):
    """What tests own."""

    clock: Clock = SystemClock()
    wall: Callable[[], datetime] = lambda: datetime.now(UTC)
    random: Random = Random()


class Election:
    """One candidate's part in an election.

    Attributes:
        holder: who leads, as last seen; "" if nobody or not known.
    """

    def __init__(
        self,
        kube: Kube,
        candidate: Candidate,
        *,
        on_change: Callable[[bool], None] = lambda leads: None,
        means: Means = Means(),  # noqa: B008 - frozen
    ) -> None:
        """Prepare to stand.

        Args:
            kube: the client.
            candidate: who stands for what.
            on_change: is told True when this one begins to lead, False when it no longer does.
            means: clocks and chance.
        """
        self._kube = kube
        self._candidate = candidate
        self._on_change = on_change
        self._means = means
        self._seen: Seen | None = None
        self._until: float | None = None  #: we lead until then; None: we do not
        self._told = False
        self._failures = 0
        self._stands = True
        self._turn = asyncio.Lock()

    @property
    def leads(self) -> bool:
        """Whether this one leads at this moment; safe to ask after any pause of the process."""
        return self._until is not None and self._means.clock.now() < self._until

    @property
    def holder(self) -> str:
        return self._seen.holder if self._seen is not None else ""

    async def run(self) -> None:
        """Stand, and renew while leading; until cancelled or released.

        Raises:
            ConfigError: the times make no sense.
        """
        self._candidate.times.check()
        try:
            while self._stands:
                async with self._turn:
                    await self._try()
                await self._rest()
        finally:
            self._drop()

    async def release(self) -> None:
        """Stop leading, then hand the Lease over at once; `run` ends soon after, or did before.

        If the server cannot be told, others take over when the lease time is up.
        """
        self._stands = False
        async with self._turn:
            self._drop()
            try:
                async with asyncio.timeout(self._candidate.times.renew / 2):
                    await self._hand_over()
            except (KubeError, TimeoutError) as error:
                log.warning("lease %s: could not be released: %s", self._candidate.path, error)

    async def _hand_over(self) -> None:
        lease = await self._kube.get(self._candidate.path)
        if self._see(lease) != self._candidate.identity:
            return
        await self._kube.replace(self._candidate.path, released(lease, self._means.wall()))
        log.info("lease %s: released", self._candidate.path)

    async def _try(self) -> None:
        """Take or renew the Lease if that is allowed."""
        if not self._stands:
            return
        began = self._means.clock.now()
        try:
            async with asyncio.timeout(self._bound()):
                holds = await self._write()
        except (KubeError, TimeoutError) as error:
            self._note(error)
            if isinstance(error, KubeError) and error.reason == "AlreadyExists":
                self._until = None  # it was deleted, and another candidate was first
            self._tell()
            return
        except Exception:  # a candidate must outlive a bug
            log.exception("lease %s: a try failed", self._candidate.path)
            self._tell()
            return
        self._failures = 0
        self._until = began + self._candidate.times.renew if holds else None
        self._tell()

    async def _write(self) -> bool:
        """Write ourselves into the Lease; False: somebody else holds it."""
        candidate, wall = self._candidate, self._means.wall()
        try:
            found = await self._kube.get(candidate.path)
        except KubeError as error:
            if error.status != 404:
                raise
            if not self._may_take():  # somebody deleted it under a leader, who still leads
                return False
            body = new_lease(candidate.name, candidate.identity, candidate.times, wall)
            self._see(await self._kube.create(candidate.collection, body))
            return True
        self._see(found)
        if not self._may_take():
            return False
        body = taken(found, candidate.identity, candidate.times, wall)
        self._see(await self._kube.replace(candidate.path, body))
        return True

    def _may_take(self) -> bool:
        now = self._means.clock.now()
        return self._seen is None or may_take(self._seen, self._candidate.identity, now)

    def _see(self, lease: dict[str, Any]) -> str:
        """Note what was found; return the holder."""
        before = self.holder
        self._seen = see(
            lease, self._seen, self._means.clock.now(), default=self._candidate.times.lease
        )
        if self.holder != before:
            log.info("lease %s: held by %s", self._candidate.path, self.holder or "nobody")
        return self.holder

    async def _rest(self) -> None:
        """Wait for the next try; if we stop leading meanwhile, say so in time."""
        times = self._candidate.times
        pause = times.retry * (1 + JITTER * self._means.random.random())
        if self._told and self._left() < pause:
            await asyncio.sleep(self._left())
            self._tell()
        else:
            await asyncio.sleep(pause)

    def _drop(self) -> None:
        """Lead no longer."""
        self._until = None
        self._tell()

    def _tell(self) -> None:
        leads = self.leads
        if leads == self._told:
            return
        self._told = leads
        log.info("lease %s: %s", self._candidate.path, "leading" if leads else "not leading")
        try:
            self._on_change(leads)
        except Exception:
            log.exception("lease %s: the listener failed", self._candidate.path)

    def _note(self, error: Exception) -> None:
        """Log a failed try; of a row of failures, those whose number is a power of two."""
        self._failures += 1
        often = self._failures & (self._failures - 1)
        lost_race = isinstance(error, KubeError) and error.status == 409
        log.log(
            logging.DEBUG if often or lost_race else logging.WARNING,
            "lease %s: %s (failure %d in a row)",
            self._candidate.path,
            error if str(error) else f"no answer within {self._bound():.1f} s",
            self._failures,
        )

    def _left(self) -> float:
        """Seconds that we still lead."""
        return 0.0 if self._until is None else max(self._until - self._means.clock.now(), 0.0)

    def _bound(self) -> float:
        """Seconds that one try may take: a leader must be back in time to say that it gives up."""
        half = self._candidate.times.renew / 2
        return min(half, self._left()) if self._told else half
