"""Many InferencePools of a namespace: one watch of pods for all, and each pool's own endpoints.

A pool is opened when it is seen and its configuration known, and closed when it is gone. What is
wrong with one concerns no other. While the API server cannot be reached everything stays as it
was.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from epp.collect.kube.cluster import LOOK_SECONDS, rights
from epp.collect.kube.configs import Config, ConfigMaps
from epp.collect.kube.crowd import Crowd
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

log = logging.getLogger(__name__)


class Home(Protocol):
    """What is kept for one pool."""

    pool: Pool
    book: RuleBook


class Homes(Protocol):
    """Keeps the pools (see `lanes.table`)."""

    def open(self, spec: PoolSpec, config: Config) -> Home:
        """A pool is there."""
        ...

    def change(self, spec: PoolSpec, config: Config) -> None:
        """Its object or its configuration is another one."""
        ...

    def close(self, name: str) -> None:
        """It is gone."""
        ...


class Pools:
    """Follows the pools of a namespace.

    Args:
        access: to the API server.
        wanted: their namespace and group; it names no pool.
        names: which pools; none: all.
        homes: is told of them.
        report: is told what is wrong with single objects.
        leads: whether this picker writes statuses.
        habits: of the watches.
    """

    def __init__(
        self,
        access: Access,
        wanted: Wanted,
        *,
        names: frozenset[str],
        homes: Homes,
        report: Callable[[str], None],
        leads: Callable[[], bool] = lambda: True,
        habits: Habits = Habits(),  # noqa: B008 - frozen
    ) -> None:
        self.synced = False  #: every pool that is named, or all there were, had its pods once
        self._access = access
        self._wanted = wanted
        self._names = names
        self._homes = homes
        self._report = report
        self._leads = leads
        self._habits = habits
        self._open: dict[str, _Open] = {}
        self._failed: set[str] = set()  #: pools that could not be opened
        self._books: dict[str, RuleBook] = {}
        self._crowd = Crowd()
        self._looked: object = None  #: at what, the last time
        self._said: dict[str, str] = {}

    async def run(self) -> None:
        """Follow them until cancelled."""
        which = ", ".join(sorted(self._names)) or "all"
        log.info(
            "watching InferencePools in namespace %s at %s: %s",
            self._wanted.namespace,
            self._access.server,
            which,
        )
        async with Kube(self._access) as kube, asyncio.TaskGroup() as tasks:
            watches = _Watches(
                self._pods(kube),
                Served(kube, self._wanted.pools, habits=self._keeping(read_pool)),
                self._policies(kube),
                ConfigMaps(kube, self._wanted.namespace, tasks, habits=self._habits),
            )
            for work in (watches.pods, watches.pools, watches.policies):
                tasks.create_task(work.run(), name=f"watch {type(work).__name__}")
            while True:
                await asyncio.sleep(LOOK_SECONDS)
                await self._look(watches)

    async def _look(self, watches: _Watches) -> None:
        watches.policies.look()
        self._say("", self._trouble(watches))
        pools, configs = watches.pools, watches.configs
        seen = pools.changes, configs.changes, watches.pods.synced, pools.state
        if pools.state == "waiting" or seen == self._looked:
            return
        self._looked = seen
        specs = self._specs(pools)
        for name in [name for name in self._open if name not in specs]:
            self._close(name)
        for spec in specs.values():
            config = configs.told(spec.config)
            if config is None:  # it is waited for, so this pool is not there yet
                self._looked = None
            else:
                await self._see(spec, config, watches)
        configs.keep_only(spec.config for spec in specs.values() if spec.config)
        done = self._failed | set(self._open)
        if watches.pods.synced and (self._names or set(specs)) <= done:
            self.synced = self.synced or pools.state == "served"

    def _specs(self, pools: Served) -> Mapping[str, PoolSpec]:
        found: list[PoolSpec] = pools.objects()
        return {spec.name: spec for spec in found if not self._names or spec.name in self._names}

    async def _see(self, spec: PoolSpec, config: Config, watches: _Watches) -> None:
        """Have a pool as it is now. To open one takes milliseconds, so others get their turn."""
        before = self._open.get(spec.name)
        if before is None or (before.spec, before.config) != (spec, config):
            try:
                pool = self._enter(spec, config, before)
            except Exception:
                log.exception("InferencePool %s cannot be served as it is now", spec.name)
                self._failed.add(spec.name)
                return
            self._failed.discard(spec.name)
            self._open[spec.name] = before = _Open(spec, config, pool)
            watches.policies.look_again()
            await asyncio.sleep(0)
        before.pool.synced = watches.pods.synced
        self._say(spec.name, spec.problem or config.problem)

    def _enter(self, spec: PoolSpec, config: Config, before: _Open | None) -> Pool:
        name = spec.name
        if before is None:
            home = self._homes.open(spec, config)
            self._crowd.add(name, Members(home.pool, report=self._report))
            self._books[name], pool = home.book, home.pool
        else:
            self._homes.change(spec, config)
            pool = before.pool
        self._crowd.follow(name, spec)
        return pool

    def _close(self, name: str) -> None:
        self._crowd.drop(name)
        del self._open[name], self._books[name]
        self._said.pop(name, None)
        self._homes.close(name)
        log.info("InferencePool %s is gone", name)

    def _trouble(self, watches: _Watches) -> str:
        """What keeps all pools from being known; "" if nothing does."""
        pods, pools = watches.pods, watches.pools
        if pods.forbidden:
            return rights("pods", pods.forbidden)
        if pools.state == "forbidden":
            return rights("inferencepools", pools.forbidden)
        if pools.state == "missing":
            return "InferencePool is not installed in this cluster (its CRD)"
        missing = sorted(self._names - set(self._open)) if pools.state == "served" else []
        where = f"in namespace {self._wanted.namespace}"
        return f"there is no InferencePool {', '.join(missing)} {where}" if missing else ""

    def _say(self, name: str, trouble: str) -> None:
        """Log what is wrong with a pool, or ("") with all, once for each change."""
        if self._said.get(name, "") == trouble:
            return
        self._said[name] = trouble
        about = f"InferencePool {name}" if name else "the pools"
        if trouble:
            log.log(logging.WARNING if self.synced else logging.ERROR, "%s: %s", about, trouble)
        else:
            log.info("%s: in order", about)

    def _pods(self, kube: Kube) -> Reflector:
        family = self._wanted.family
        return Reflector(
            kube,
            self._wanted.pods,
            on_put=self._crowd.put,
            on_gone=self._crowd.gone,
            habits=self._keeping(lambda manifest: as_pod(manifest, family)),
        )

    def _policies(self, kube: Kube) -> Policies:
        return Policies(
            kube,
            self._wanted,
            books=self._books,
            leads=self._leads,
            habits=self._habits,
            report=self._report,
        )

    def _keeping(self, keep: Callable[..., object]) -> Habits:
        return msgspec.structs.replace(self._habits, keep=keep)


class _Watches(msgspec.Struct, frozen=True):
    """What is followed."""

    pods: Reflector
    pools: Served
    policies: Policies
    configs: ConfigMaps


class _Open(msgspec.Struct, frozen=True):
    """A pool, and what its home was told of it."""

    spec: PoolSpec
    config: Config
    pool: Pool
