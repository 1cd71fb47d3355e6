"""The ext_proc ports of a process: the one that all pools share, and those that one pool has alone.

A gateway that can say nothing about a request's pool may ask at the pool's own port.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from epp.errors import ConfigError
from epp.extproc.port.listen import PickerServer

LOOK_SECONDS = 0.1  #: how late a port opens for a new pool
RETRY_SECONDS = 5.0  #: before a port that could not be bound is tried again

log = logging.getLogger(__name__)


class Ports:
    """Serves on a shared port, and on each port that a pool has for itself.

    Args:
        shared: serves all pools.
        wanted: the pool of each port, as of now.
        build: binds one; may raise `ConfigError`.
        grace: seconds that streams have to end when a pool gives its port up.
    """

    def __init__(
        self,
        shared: PickerServer,
        wanted: Callable[[], Mapping[int, str]],
        build: Callable[[int], PickerServer],
        grace: float,
        *,
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        self.port = shared.port  #: the shared one
        self._shared = shared
        self._wanted = wanted
        self._build = build
        self._grace = grace
        self._retry_seconds = retry_seconds
        self._owned: dict[int, PickerServer] = {}
        self._tried: dict[int, float] = {}  #: when a port was tried in vain, on the loop's clock
        self._keeping: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to serve."""
        await self._shared.start()
        self._keeping = asyncio.create_task(self._keep(), name="ports of pools")

    async def drain(self, grace: float, *, notice: float = 0.0) -> None:
        """See `PickerServer.drain`; no port opens any more."""
        await self._settle()
        servers = (self._shared, *self._owned.values())
        await asyncio.gather(*(each.drain(grace, notice=notice) for each in servers))

    async def stop(self) -> None:
        """Stop at once; open streams are cancelled."""
        await self._settle()
        await asyncio.gather(*(each.stop() for each in (self._shared, *self._owned.values())))

    async def _settle(self) -> None:
        task, self._keeping = self._keeping, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _keep(self) -> None:
        """Open and close ports as pools ask for them, until cancelled."""
        async with asyncio.TaskGroup() as leaving:
            while True:
                wanted = {port: to for port, to in self._wanted().items() if port != self.port}
                for port in [port for port in self._owned if port not in wanted]:
                    log.info("port %d: closed, no pool has it for itself", port)
                    leaving.create_task(self._owned.pop(port).leave(self._grace))
                for port, pool in wanted.items():
                    if port not in self._owned:
                        await self._open(port, pool)
                await asyncio.sleep(LOOK_SECONDS)

    async def _open(self, port: int, pool: str) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._tried.get(port, -self._retry_seconds) < self._retry_seconds:
            return
        try:
            server = self._build(port)
        except ConfigError as error:
            self._tried[port] = now
            log.error("pool %s has no port of its own: %s", pool, error)  # noqa: TRY400
            return
        self._owned[port] = server
        await server.start()
        log.info("port %d: what comes here is for pool %s", port, pool)
