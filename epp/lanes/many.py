"""A process that serves many InferencePools: a lane for each, opened and closed as they come and go.

The pool of a request is what the gateway says (see `extproc.hints`), or the pool whose own port it
came to. A pool's lane goes with the pool, and its counts and knowledge with it; requests under way
end as they would have.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from epp.collect.kube.configs import NONE, Config
from epp.collect.kube.leader import Leadership
from epp.collect.parse.inference_pools import PoolSpec
from epp.errors import ConfigError, NoPool, UnknownPool
from epp.exchange import Exchange
from epp.extproc.hints import read_hints
from epp.extproc.server import ExtProcService
from epp.lanes.lane import Lane, Read, Shared, Told
from epp.lanes.names import Names
from epp.lanes.pages import all_pages, pages_of
from epp.model import Arrival, Endpoint, EndpointId
from epp.serve.origin import namespace_of, pools_of
from epp.serve.watching import POOL
from epp.telemetry.admin import AdminPages, Page
from epp.telemetry.metrics import Metrics

RESTART_SECONDS = 5.0  #: before the work of a lane that failed begins again

log = logging.getLogger(__name__)


class Nowhere:
    """Routes nothing: a stream without a request's head is for no pool."""

    async def route(self, arrival: Arrival) -> Exchange:
        """Refuse."""
        raise NoPool("the gateway does not show the request's head, so its pool is not known")


class Many:
    """The lanes of a process, by pool.

    Args:
        shared: by all lanes.
        metrics: the process's; each lane has counts of its own besides.
        read: tells the configuration of pools that have none of their own.

    Raises:
        ConfigError: that configuration is wrong, or pools would write one file.
    """

    def __init__(self, shared: Shared, metrics: Metrics, read: Read) -> None:
        options = shared.options
        if options.record_file and POOL not in options.record_file:
            raise ConfigError(
                f"--record-file {options.record_file}: many pools need a file each, as with "
                f"{POOL} in its name"
            )
        self.lanes: dict[str, Lane] = {}
        self.router = Nowhere()
        self._shared = shared
        self._metrics = metrics
        self._read = read
        self._namespace = namespace_of(options)
        self._specs: dict[str, PoolSpec] = {}
        self._configs: dict[str, Config] = {}
        #: Pools that have the process's configuration for want of their own, and why.
        self._fallen: dict[str, str] = {}
        self._named: Names | None = None  #: made when it is asked for
        self._unfit: dict[str, str] = {}  #: parsers that do not fit a pool, as last said
        self._work: dict[str, asyncio.Task[None]] = {}
        self._group: asyncio.TaskGroup | None = None
        self._synced: Callable[[], bool] = lambda: False
        self._base: tuple[Callable[[], bool], Page] = (lambda: False, dict)
        self._homes: dict[EndpointId, Lane] = {}  #: where an endpoint was found, see `get`
        self._default = read()  #: the configuration of pools without one of their own
        self._make("default", self._default)  # a wrong one must not wait for a pool to fail
        metrics.watch_pools(lambda: {name: lane.metrics for name, lane in self.lanes.items()})

    @property
    def ready(self) -> bool:
        """Whether every pool that is named was known once, or all that there were at the start."""
        return self._synced()

    def get(self, endpoint_id: EndpointId) -> Endpoint | None:
        """The endpoint of that id, in whatever pool."""
        home = self._homes.get(endpoint_id)
        found = None if home is None else home.pool.get(endpoint_id)
        if found is not None:
            return found
        for lane in self.lanes.values():
            if (found := lane.pool.get(endpoint_id)) is not None:
                self._homes[endpoint_id] = lane
                return found
        return None

    def choose(self, data: bytes, context: Any, port: int) -> Lane:
        """Return the lane of a request; see `extproc.needs.Choose`.

        Raises:
            UnknownPool: the gateway names a pool that is not served here.
            NoPool: it names none, or the pools are not known yet.
        """
        names = self._names
        owner = names.owner(port or self._shared.options.grpc_port)
        if owner is not None:
            return self.lanes[owner]
        try:
            return self.lanes[names.find(read_hints(data, context.invocation_metadata()))]
        except UnknownPool as error:
            if self.ready:
                raise
            raise NoPool(f"the pools are not known yet: {error}") from error

    # --- pools that come and go; see `collect.kube.pools.Homes` ----------------------------

    def open(self, spec: PoolSpec, config: Config) -> Lane:
        """Serve a pool; with the process's configuration if its own cannot be used."""
        name = spec.name
        lane = self._lane(name, config)
        lane.pool.on_forget(self._lost)
        self.lanes[name], self._specs[name], self._configs[name] = lane, spec, config
        self._named = None
        self._fit(lane, spec)
        self._start(name, lane)
        log.info("pool %s: served, configured by %s", name, lane.loaded.source or "the built-in")
        return lane

    def _lost(self, endpoint_id: EndpointId) -> None:
        self._homes.pop(endpoint_id, None)

    def change(self, spec: PoolSpec, config: Config) -> None:
        """Serve a pool as it is now; a configuration that is wrong changes nothing."""
        name, lane = spec.name, self.lanes[spec.name]
        before, self._specs[name] = self._specs[name], spec
        if before.picker_port != spec.picker_port:
            self._named = None
        if config != self._configs[name]:
            self._configs[name] = config
            self._reload(name, lane, "its ConfigMap or annotation changed")
        self._fit(lane, spec)

    def close(self, name: str) -> None:
        """Serve a pool no longer."""
        lane = self.lanes.pop(name)
        del self._specs[name], self._configs[name]
        self._fallen.pop(name, None)
        self._unfit.pop(name, None)
        self._end(name)
        for endpoint_id in [key for key, home in self._homes.items() if home is lane]:
            del self._homes[endpoint_id]
        self._named = None

    def _fit(self, lane: Lane, spec: PoolSpec) -> None:
        """Say which parsers can read nothing of a pool. It is served all the same: others are."""
        lane.pool.protocol = spec.protocol
        said, unfit = self._unfit.get(spec.name, ""), lane.unfit
        self._unfit[spec.name] = unfit
        if unfit and unfit != said:
            log.error(
                "pool %s: its appProtocol is %s, which %s cannot be",
                spec.name,
                spec.protocol,
                unfit,
            )

    def reload(self, why: str) -> None:
        """Read the process's configuration again, for the pools without one of their own."""
        try:
            default = self._read()
            self._make("default", default)
        except ConfigError as error:
            self._metrics.reloaded(ok=False)
            log.error("the configuration stays as it was (%s): %s", why, error)  # noqa: TRY400
            return
        self._default = default
        self._metrics.reloaded(ok=True)
        if self._group is not None:
            self._group.create_task(self._reload_each(why), name="reload")

    async def _reload_each(self, why: str) -> None:
        """Each pool in a turn of its own: requests for the others must not wait for all."""
        for name, lane in list(self.lanes.items()):
            by_default = self._configs.get(name) == NONE or name in self._fallen
            if by_default and self.lanes.get(name) is lane:
                try:
                    self._take(name, lane, self._default, why)
                except Exception:
                    log.exception("pool %s: its configuration stays as it was", name)
                await asyncio.sleep(0)

    def _lane(self, name: str, config: Config) -> Lane:
        problem = config.problem
        try:
            lane = self._make(name, self._told(config))
        except ConfigError as error:
            problem = f"{config.source}: {error}"
            lane = self._make(name, self._default)
        if problem:
            self._fallen[name] = problem
            lane.refuse(problem, "the pool is served by the process's")
        return lane

    def _make(self, name: str, told: Told) -> Lane:
        return Lane(name, self._shared, Metrics(process=False), lambda: told)

    def _reload(self, name: str, lane: Lane, why: str) -> None:
        config = self._configs[name]
        if config == NONE:
            self._fallen.pop(name, None)
        if config.problem:
            lane.refuse(config.problem, why)
        else:
            self._take(name, lane, self._told(config), why)
            if not lane.last_error:
                self._fallen.pop(name, None)
        if name in self._fallen:
            self._fallen[name] = lane.last_error

    def _take(self, name: str, lane: Lane, told: Told, why: str) -> None:
        """Configure a pool by what is ``told``; one that fell back to it still says so."""
        if lane.reload(lambda: told, why):
            self._end(name)  # its endpoints are scraped in another way
            self._start(name, lane)
        self._fit(lane, self._specs[name])
        if name in self._fallen and not lane.last_error and told == self._default:
            lane.refuse(self._fallen[name], "the pool is served by the process's")

    def _told(self, config: Config) -> Told:
        return self._default if config.text is None else (config.text, config.source)

    @property
    def ports(self) -> Mapping[int, str]:
        """The pool of each port that one pool alone names as its picker's."""
        if not self._shared.options.pool_ports:
            return {}
        named: dict[int, list[str]] = {}
        for name, spec in self._specs.items():
            if spec.picker_port:
                named.setdefault(spec.picker_port, []).append(name)
        return {port: pools[0] for port, pools in named.items() if len(pools) == 1}

    @property
    def _names(self) -> Names:
        if self._named is None:
            self._named = Names(self._namespace, self.lanes, self.ports)
        return self._named

    # --- work ------------------------------------------------------------------------------

    def attach(self, service: ExtProcService) -> None:
        """Have ``service`` ask here."""
        service.choose = self.choose

    def work(self, leader: Leadership | None) -> Mapping[str, Coroutine[Any, Any, None]]:
        """What is to run all the time, by name."""
        pools = pools_of(self._shared.options, self, self._shared.seldom, leader)
        self._synced = lambda: pools.synced
        return {"pools": pools.run(), "lanes": self._run()}

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as group:
            self._group = group
            for name, lane in self.lanes.items():
                self._start(name, lane)
            await asyncio.Event().wait()

    def _start(self, name: str, lane: Lane) -> None:
        if self._group is not None:
            self._work[name] = self._group.create_task(_keep(lane), name=f"pool {name}")

    def _end(self, name: str) -> None:
        task = self._work.pop(name, None)
        if task is not None:
            task.cancel()

    # --- pages -----------------------------------------------------------------------------

    def pages(self, ready: Callable[[], bool], state: Page) -> AdminPages:
        """The admin pages of all pools; ``ready`` and ``state`` are the process's."""
        self._base = ready, state
        return all_pages(self.lanes, ready, state)

    def pages_by_pool(self) -> Mapping[str, AdminPages]:
        """The pages of single pools."""
        _, state = self._base
        return {name: pages_of(lane, lambda lane=lane: lane.ready, state)  # type: ignore[misc]
                for name, lane in self.lanes.items()}  # fmt: skip


async def _keep(lane: Lane) -> None:
    """Work for a lane until cancelled; its failure is none of the others'."""
    while True:
        try:
            async with asyncio.TaskGroup() as group:
                for name, work in lane.work().items():
                    group.create_task(work, name=f"{name} {lane.pool.name}")
        except* Exception:
            log.exception("pool %s: its work failed and begins again", lane.pool.name)
        await asyncio.sleep(RESTART_SECONDS)
