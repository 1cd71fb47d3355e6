"""The real picker as a process, with a gateway's end of ext_proc and an operator's eyes."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import msgspec
from grpc_health.v1 import health_pb2

from epp.local.fleet import Ports
from epp.local.processes import Child, epp, running
from epp.sim.options import EngineOptions
from tests.support import engine, ext_proc
from tests.support.ext_proc import Gateway

NOBODY = "127.0.0.1:1,127.0.0.1:2"  #: endpoints at which nothing listens
PLAIN = ("--host=127.0.0.1", "--grpc-port=0", "--grpc-health-port=0", "--metrics-port=0",
         "--secure-serving=false", "--metrics-endpoint-auth=false")  # fmt: skip
SERVING, NOT_SERVING = 1, 2


class Refused(Exception):
    """The picker's answer is an HTTP error; the only argument is its status."""


class Serving:
    """A running ``epp serve``."""

    def __init__(
        self, child: Child, ports: Ports, gateway: Gateway, http: aiohttp.ClientSession
    ) -> None:
        self.child = child
        self.ports = ports
        self.gateway = gateway
        self._http = http

    async def get(self, path: str) -> tuple[int, str]:
        async with self._http.get(f"http://127.0.0.1:{self.ports.admin}{path}") as answer:
            return answer.status, await answer.text()

    async def json(self, path: str) -> Any:
        return msgspec.json.decode((await self.get(path))[1])

    async def metric(self, series: str) -> float | None:
        """The value of one series, such as ``epp_config_current`` or ``name{label="x"}``."""
        page = (await self.get("/metrics"))[1]
        found = re.search(rf"^{re.escape(series)} (\S+)$", page, re.MULTILINE)
        return float(found[1]) if found else None

    async def state(self) -> dict[str, Any]:
        found: dict[str, Any] = await self.json("/debug/state")
        return found

    async def blocks(self) -> int:
        """Prefix blocks the picker believes to be in caches."""
        plugins = await self.json("/debug/plugins/state")
        return int(plugins["approx-prefix-cache-producer"]["blocks"])

    def memory(self) -> float:
        """MiB that the process occupies."""
        status = Path(f"/proc/{self.child.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1]) / 1024

    def open_files(self) -> int:
        return len(list(Path(f"/proc/{self.child.pid}/fd").iterdir()))

    def log(self) -> str:
        return self.child.log.read_text()

    def signal(self, number: signal.Signals) -> None:
        self.child.process.send_signal(number)

    async def health(self, service: str = "", *, port: int = 0) -> int:
        """The gRPC health status on the health port."""
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port or self.ports.health}") as channel:
            check = channel.unary_unary(
                "/grpc.health.v1.Health/Check",
                request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
                response_deserializer=health_pb2.HealthCheckResponse.FromString,
            )
            answer = await check(health_pb2.HealthCheckRequest(service=service), timeout=5.0)
            return int(answer.status)


@contextlib.asynccontextmanager
async def serving(
    folder: Path, *arguments: str, endpoints: str = f"--endpoints={NOBODY}"
) -> AsyncIterator[Serving]:
    """Run ``epp serve`` on free loopback ports; stopped at the end if it still runs."""
    command = epp("serve", *PLAIN, endpoints, *arguments)
    async with running(command, folder / "picker.log") as child:
        ports = msgspec.json.decode(child.first_line, type=Ports)
        async with Gateway(ports.grpc) as gateway, aiohttp.ClientSession() as http:
            yield Serving(child, ports, gateway, http)


Step = Callable[[Serving], Coroutine[Any, Any, None]]


def with_engines(folder: Path, step: Step, *flags: str) -> None:
    """Run a step against a picker whose endpoints are two simulated engines."""

    async def main() -> None:
        async with engine.served(EngineOptions(name="a"), EngineOptions(name="b")) as engines:
            addresses = ",".join(f"127.0.0.1:{port}" for _, port in engines)
            async with serving(folder, *flags, endpoints=f"--endpoints={addresses}") as picker:
                await step(picker)

    asyncio.run(main())


def prompt_body(prompt: str) -> bytes:
    return msgspec.json.encode({"model": "m", "prompt": prompt})


async def ask(stream: ext_proc.Stream, prompt: str = "hello", *, name: str = "r-1") -> str:
    """Send one whole request; return its destination. The stream stays open for the answer.

    Raises:
        Refused: the picker answered with an error.
    """
    await stream.send(
        ext_proc.request_head({"content-type": "application/json", "x-request-id": name}),
        ext_proc.request_body(prompt_body(prompt), ends=True),
    )
    first = await stream.read()
    if first.WhichOneof("response") == "immediate_response":
        raise Refused(first.immediate_response.status.code)
    await stream.read()
    return ext_proc.destination(first)


async def answer(
    stream: ext_proc.Stream, status: int = 200, *, headers: Mapping[str, str] | None = None
) -> None:
    """Let the answer pass through, whole."""
    await stream.send(ext_proc.response_head(headers, status=status))
    await stream.read()
    await stream.send(ext_proc.response_body(b"{}", ends=True))
    await stream.read()
    await stream.close()
    await stream.rest()


async def complete(gateway: Gateway, prompt: str = "hello", *, name: str = "r-1") -> str:
    """One whole exchange in the stock mode; return its destination."""
    async with gateway.stream() as stream:
        destination = await ask(stream, prompt, name=name)
        await answer(stream)
    return destination


async def eventually(
    condition: Callable[[], Awaitable[Any]], *, bound: float = 10.0, every: float = 0.02
) -> Any:
    """Ask until the answer is true, at most ``bound`` seconds; return it."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + bound
    while not (found := await condition()):
        assert loop.time() < deadline, f"not within {bound} s; the last answer was {found!r}"
        await asyncio.sleep(every)
    return found


async def in_parallel(count: int, work: Callable[[int], Coroutine[Any, Any, None]]) -> None:
    """Do ``work(0)`` to ``work(count - 1)``, sixteen at a time."""
    numbers = iter(range(count))

    async def worker() -> None:
        for number in numbers:
            await work(number)

    async with asyncio.TaskGroup() as group:
        for _ in range(16):
            group.create_task(worker())


async def at_rest(picker: Serving) -> dict[str, Any]:
    """Wait until nothing is under way; return what the picker says of itself."""

    async def quiet() -> dict[str, Any] | None:
        state = await picker.state()
        pool = await picker.json("/debug/pool")
        booked = [each[f"in_flight_{what}"] for each in pool for what in ("requests", "tokens")]
        counts = (state["streams"], state["open_exchanges"], state["buffered_bytes"], *booked)
        return state if not any(counts) else None

    found: dict[str, Any] = await eventually(quiet, bound=20.0)
    return found
