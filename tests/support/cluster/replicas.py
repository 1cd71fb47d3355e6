"""The picker's replicas as processes: with the account, the rights and the arguments of the chart."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from epp.local.fleet import Ports
from epp.local.processes import Child, epp, running
from tests.support import http1
from tests.support.cluster.install import Installed, installed
from tests.support.cluster.pods import Pods
from tests.support.cluster.server import Server, api_server
from tests.support.serving import eventually

ELECTION = {"picker": {"replicas": 2, "leaderElection": True}}
READY_SECONDS = 30.0
NO_ANSWER = (OSError, EOFError, TimeoutError)

Way = Callable[[Server], Server]


class Picker:
    """One replica."""

    def __init__(self, child: Child) -> None:
        self.child = child
        self.ports = msgspec.json.decode(child.first_line, type=Ports)

    @property
    def lives(self) -> bool:
        return self.child.process.returncode is None

    async def get(self, path: str, headers: Mapping[str, str] | None = None) -> http1.Answer:
        """Read a path of its metrics port."""
        return await http1.request(self.ports.admin, "GET", path, headers)

    async def ready(self) -> bool:
        """Whether requests may come here."""
        with contextlib.suppress(*NO_ANSWER):
            return self.lives and (await self.get("/readyz")).status == 200
        return False

    async def endpoints(self) -> list[tuple[str, str]]:
        """Pod name and address of the endpoints that may get requests."""
        pool = msgspec.json.decode((await self.get("/debug/pool")).body)
        return [(each["name"], each["address"]) for each in pool if not each["draining"]]

    async def has(self, names: list[str]) -> None:
        """Wait until it has just these pods."""

        async def known() -> bool:
            return sorted(name for name, _ in await self.endpoints()) == sorted(names)

        await eventually(known, bound=READY_SECONDS, every=0.05)

    def log(self) -> str:
        return self.child.log.read_text()


class Replicas:
    """A release and its pickers.

    Attributes:
        pods: those of the release's namespace; nothing listens there.
    """

    def __init__(self, release: Installed, pickers: list[Picker], port: int) -> None:
        self.release = release
        self.pickers = pickers
        self.pods = Pods(release, port)

    @property
    def picker(self) -> Picker:
        return self.pickers[0]

    async def is_ready(self, *, ready: bool = True) -> None:
        """Wait until the first picker is ready, or is not."""

        async def so() -> bool:
            return await self.picker.ready() is ready

        await eventually(so, bound=READY_SECONDS, every=0.05)


@contextlib.asynccontextmanager
async def replicas(
    folder: Path,
    port: int = 8000,
    *,
    values: Mapping[str, Any] | None = None,
    way: Way = lambda server: server,
) -> AsyncIterator[Replicas]:
    """A release whose engines listen on ``port``; the pickers' way to the API server is ``way``."""
    async with contextlib.AsyncExitStack() as stack:
        server, admin = await stack.enter_async_context(api_server())
        release = await stack.enter_async_context(installed(server, admin, port, values))
        told = way(server)
        count = ((values or {}).get("picker") or {}).get("replicas", 1)
        pickers = [
            await stack.enter_async_context(_picker(release, told, folder / f"picker-{number}"))
            for number in range(count)
        ]
        yield Replicas(release, pickers, port)


@contextlib.asynccontextmanager
async def _picker(release: Installed, server: Server, folder: Path) -> AsyncIterator[Picker]:
    folder.mkdir()
    file = await release.kubeconfig(folder / "kubeconfig", server)
    command = epp(
        "serve", *release.arguments, "--host=127.0.0.1", "--grpc-port=0", "--grpc-health-port=0",
        "--metrics-port=0", "--peers-port=0", "--secure-serving=false", f"--kubeconfig={file}",
    )  # fmt: skip
    async with running(command, folder / "picker.log") as child:
        yield Picker(child)
