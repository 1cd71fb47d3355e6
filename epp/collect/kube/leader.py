"""Which of several pickers may be asked: the one that leads, by a Lease.

An outage of the API server ends every leadership and must not end the service: a picker that was
the last known holder stays ready until it hears of another one. For that while two may be ready,
each with what it knows of the endpoints, as without an election.

**Source:** llm-d's endpoint picker: the Lease's name, and that only the leader is ready.
"""

from __future__ import annotations

import asyncio
import logging
import re

from epp.kube.access import Access
from epp.kube.client import Kube
from epp.kube.errors import KubeError
from epp.kube.lease import Candidate, Election

RELEASE_SECONDS = 5.0
_OF_DEPLOYMENT = re.compile(r"(.+)-[a-z0-9]+-[a-z0-9]+")

log = logging.getLogger(__name__)


def owner_of(pool: str, pod: str) -> str:
    """What pickers serve, by name: a pool, or without one the Deployment that ``pod`` is of."""
    deployment = _OF_DEPLOYMENT.fullmatch(pod)
    return pool or (deployment[1] if deployment else pod) or "default"


def lease_name(namespace: str, pool: str, pod: str) -> str:
    """The Lease of a pool's pickers; see `owner_of`."""
    return f"epp-{namespace}-{owner_of(pool, pod)}.llm-d.ai"


class Leadership:
    """One picker's part in the election of the pickers of one pool."""

    def __init__(self, access: Access, candidate: Candidate) -> None:
        self._access = access
        self._candidate = candidate
        self._election: Election | None = None
        self._released = False

    @property
    def leads(self) -> bool:
        """Whether nobody else leads, for certain."""
        return self._election is not None and self._election.leads

    @property
    def ready(self) -> bool:
        """Whether requests may come here."""
        if self._election is None or self._released:
            return False
        return self._election.leads or self._election.holder == self._candidate.identity

    async def run(self) -> None:
        """Stand until cancelled.

        Raises:
            ConfigError: see `Election.run`.
        """
        async with Kube(self._access) as kube:
            self._election = Election(kube, self._candidate)
            await self._election.run()
            await asyncio.Event().wait()  # `release` still needs the client

    async def release(self) -> None:
        """Hand over to another picker, within `RELEASE_SECONDS`."""
        self._released = True
        if self._election is None:
            return
        try:
            async with asyncio.timeout(RELEASE_SECONDS):
                await self._election.release()
        except (TimeoutError, KubeError):
            log.warning("%s was not released in time", self._candidate.name)
