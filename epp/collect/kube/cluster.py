"""The endpoints of a cluster: watches its pods and its pool, and keeps the `Pool` as they are.

While the API server cannot be reached, or refuses, everything stays as it was: an outage of the
control plane is none of the data plane.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import msgspec

from epp.collect.kube.members import Members
from epp.collect.kube.policies import Policies
from epp.collect.kube.served import Served
from epp.collect.kube.wanted import Wanted
from epp.collect.parse.inference_pools import PoolSpec, read_pool
from epp.collect.parse.pods import as_pod
from epp.kube.access import Access
from epp.kube.client import Kube
from epp.kube.reflect import Habits, Reflector
from epp.pool import Pool
from epp.rules import RuleBook

LOOK_SECONDS = 0.1  #: how late a change of the pool's own object is noticed; pods are at once

log = logging.getLogger(__name__)


class Cluster:
    """Keeps the pool, and its objectives and rewrites, as a cluster has them.

    Args:
        access: to the API server.
        wanted: which pods.
        book: is given the objectives and rewrites; None: they are not asked for.
        report: is told what is wrong with single objects.
        leads: whether this picker writes statuses.
        habits: of the watches.
    """

    def __init__(
        self,
        access: Access,
        wanted: Wanted,
        *,
        book: RuleBook | None,
        report: Callable[[str], None],
        leads: Callable[[], bool] = lambda: True,
        habits: Habits = Habits(),  # noqa: B008 - frozen
    ) -> None:
        self._access = access
        self._wanted = wanted
        self._book = book
        self._report = report
        self._leads = leads
        self._habits = habits
        self._said = ""

    def load(self, pool: Pool) -> None:
        """Say what will be watched; nothing is known of it yet."""
        del pool
        log.info("watching %s at %s", self._wanted, self._access.server)

    async def run(self, pool: Pool) -> None:
        """Keep ``pool`` until cancelled."""
        members = Members(pool, report=self._report)
        async with Kube(self._access) as kube, asyncio.TaskGroup() as tasks:
            pods = self._pods(kube, members)
            tasks.create_task(pods.run(), name="watch pods")
            pools, policies = self._pools(kube), self._policies(kube)
            for work in (pools, policies):
                if work is not None:
                    tasks.create_task(work.run(), name=f"watch {type(work).__name__}")
            while True:
                await asyncio.sleep(LOOK_SECONDS)
                if policies is not None:
                    policies.look()
                self._look(pool, members, pods, pools)

    def _look(self, pool: Pool, members: Members, pods: Reflector, pools: Served | None) -> None:
        spec = self._spec(pools)
        members.follow(spec)
        pool.protocol = "" if spec is None else spec.protocol
        pool.synced = pods.synced and spec is not None
        trouble = self._trouble(pods, pools, spec)
        if trouble != self._said:
            self._said = trouble
            self._say(trouble, pool)

    def _spec(self, pools: Served | None) -> PoolSpec | None:
        if pools is None:
            return self._wanted.fixed
        found: PoolSpec | None = next(iter(pools.objects()), None)
        return found

    def _trouble(self, pods: Reflector, pools: Served | None, spec: PoolSpec | None) -> str:
        """What keeps the endpoints from being known, or known any longer; "" if nothing does."""
        if pods.forbidden:
            return rights("pods", pods.forbidden)
        if pools is not None and pools.state != "waiting" and spec is None:
            if pools.state == "forbidden":
                return rights("inferencepools", pools.forbidden)
            if pools.state == "missing":
                return "InferencePool is not installed in this cluster (its CRD)"
            return f"there is no {self._wanted}"
        return f"{self._wanted}: {spec.problem}" if spec is not None and spec.problem else ""

    def _say(self, trouble: str, pool: Pool) -> None:
        if not trouble:
            log.info("%s: in order, %d endpoints", self._wanted, len(pool))
        elif pool.synced:
            log.warning("%s", trouble)
        else:
            log.error("not ready: %s", trouble)

    def _pods(self, kube: Kube, members: Members) -> Reflector:
        family = self._wanted.family
        return Reflector(
            kube,
            self._wanted.pods,
            label_selector=self._wanted.selector,
            on_put=members.put,
            on_gone=members.gone,
            habits=msgspec.structs.replace(
                self._habits, keep=lambda manifest: as_pod(manifest, family)
            ),
        )

    def _pools(self, kube: Kube) -> Served | None:
        wanted = self._wanted
        if not wanted.pool:
            return None
        habits = msgspec.structs.replace(self._habits, keep=read_pool)
        return Served(
            kube, wanted.pools, field_selector=f"metadata.name={wanted.pool}", habits=habits
        )

    def _policies(self, kube: Kube) -> Policies | None:
        if not self._wanted.pool or self._book is None:
            return None
        return Policies(
            kube,
            self._wanted,
            books={self._wanted.pool: self._book},
            leads=self._leads,
            habits=self._habits,
            report=self._report,
        )


def rights(plural: str, said: str) -> str:
    """Say which rights are missing; ``said`` is what the server said."""
    return f"its role needs get, list and watch on {plural} ({said})"
