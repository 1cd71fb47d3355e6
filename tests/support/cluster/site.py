"""All of a release where no kubelet is: its objects in a cluster, its processes on this machine.

Only the API server is the cluster's. Pickers, Envoy and engines run here, and what a kubelet, a
Deployment and a Service would do is done by hand.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from epp.gateway.options import GatewayOptions, Mode
from epp.gateway.render import render
from epp.local.fleet import envoy_binary, free_port
from epp.local.processes import STOP_SECONDS
from tests.support import http1
from tests.support.cluster.engines import Engines, engines
from tests.support.cluster.replicas import (
    NO_ANSWER,
    READY_SECONDS,
    Picker,
    Replicas,
    replicas,
)
from tests.support.relay import Relay
from tests.support.serving import eventually

PROBE_SECONDS = 0.1  #: between two probes, where a kubelet takes 2 s
HOOK_SECONDS = 0.3  #: between a pod's mark and SIGTERM, where its preStop hook takes longer


class Site:
    """A release, its engines and its gateway."""

    def __init__(self, made: Replicas, hosts: Engines, port: int, service: int) -> None:
        self.release = made.release
        self.pods = made.pods
        self.pickers = made.pickers
        self.port = port  #: of the gateway, for clients
        self.service = service  #: port of the picker's Service
        self.engines = hosts
        self.running: dict[str, str] = {}  #: addresses of the pods that run, by name
        self._count = 0

    @property
    def names(self) -> list[str]:
        return list(self.running)

    @property
    def addresses(self) -> tuple[str, ...]:
        """``host:port`` of the engines that run."""
        return tuple(f"{host}:{self.engines.port}" for host in self.running.values())

    async def scale(self, count: int) -> list[str]:
        """Have so many pods; return their names once the pickers know them."""
        more = count - len(self.running)
        await asyncio.gather(*(self._up() for _ in range(more)))
        await asyncio.gather(*(self._down(name) for name in self.names[: max(-more, 0)]))
        await self.settled()
        return self.names

    async def settled(self) -> None:
        """Wait until every picker has the pods that run, and no others."""
        await asyncio.gather(*(each.has(self.names) for each in self.pickers if each.lives))

    async def roll(self, *, surge: int) -> None:
        """Replace all pods as a Deployment does, with ``surge`` more of them at a time."""
        old = self.names
        for start in range(0, len(old), surge):
            leaving = old[start : start + surge]
            await asyncio.gather(*(self._up() for _ in leaving))
            await self.settled()
            await asyncio.gather(*(self._down(name) for name in leaving))

    async def leader(self) -> Picker:
        """The replica that is ready, waited for."""

        async def found() -> Picker | None:
            ready = [each for each in self.pickers if await each.ready()]
            return ready[0] if ready else None

        return await eventually(found, bound=READY_SECONDS)

    async def _up(self) -> None:
        self._count += 1
        name, host = f"engine-{self._count}", self.engines.address()
        await self.engines.start(name, host)
        await self.pods.start(name, host)
        self.running[name] = host

    async def _down(self, name: str) -> None:
        """How a pod ends: it is marked, its hook, SIGTERM, its requests end, it is gone."""
        del self.running[name]
        await self.pods.delete(name)
        await asyncio.sleep(HOOK_SECONDS)
        await self.engines.stop(name)
        await self.pods.end(name)


@contextlib.asynccontextmanager
async def site(
    folder: Path, *, count: int = 2, values: Mapping[str, Any] | None = None
) -> AsyncIterator[Site]:
    """A release with ``count`` engines, answering."""
    async with contextlib.AsyncExitStack() as stack:
        hosts = await stack.enter_async_context(engines())
        made = await stack.enter_async_context(replicas(folder, hosts.port, values=values))
        service = await stack.enter_async_context(_service(made.pickers))
        port = await stack.enter_async_context(gateway(folder, service.port))
        running = Site(made, hosts, port, service.port)
        await running.scale(count)

        async def reachable() -> bool:  # a ready picker is not yet one the Service knows of
            return service.target in {each.ports.grpc for each in made.pickers}

        await eventually(reachable, bound=READY_SECONDS)
        yield running


@contextlib.asynccontextmanager
async def _service(pickers: list[Picker]) -> AsyncIterator[Relay]:
    """What a Service does: one port, behind it a replica that is ready."""
    with Relay() as relay:

        async def probe() -> None:
            while True:
                ready = await asyncio.gather(*(each.ready() for each in pickers))
                of = zip(pickers, ready, strict=True)
                relay.target = next((each.ports.grpc for each, is_ready in of if is_ready), 0)
                await asyncio.sleep(PROBE_SECONDS)

        probing = asyncio.create_task(probe())
        try:
            yield relay
        finally:
            probing.cancel()


@contextlib.asynccontextmanager
async def gateway(
    folder: Path, picker_port: int, mode: Mode = "stock", **options: Any
) -> AsyncIterator[int]:
    """An Envoy in front of a picker, configured as gateways of clusters are; its port."""
    port, admin = free_port(), free_port()
    told = GatewayOptions(
        mode=mode, listen_port=port, admin_port=admin, picker_port=picker_port, picker_tls=False,
        **options,
    )  # fmt: skip
    bootstrap, log = folder / f"envoy-{port}.yaml", folder / f"envoy-{port}.log"
    bootstrap.write_text(render(told))
    process = await asyncio.create_subprocess_exec(
        envoy_binary(), "-c", str(bootstrap), "--concurrency", "2", "--log-level", "warn",
        "--disable-hot-restart", "--log-path", str(log),
    )  # fmt: skip

    async def up() -> bool:
        assert process.returncode is None, log.read_text()
        with contextlib.suppress(*NO_ANSWER):
            return (await http1.request(admin, "GET", "/ready")).status == 200
        return False

    try:
        await eventually(up, bound=READY_SECONDS)
        yield port
    finally:
        process.kill()
        async with asyncio.timeout(STOP_SECONDS):
            await process.wait()
