"""Pickers in this process that tell each other over real sockets: routers with all that learns."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import grpc.aio

from epp.build import Parts, configure
from epp.clock import SystemClock
from epp.exchange import Exchange
from epp.ledger import Ledger
from epp.local.fleet import free_port
from epp.model import Arrival, EndpointId, PrefixMatch
from epp.peers import wire
from epp.peers.circle import Circle
from epp.peers.hearing import Hearing
from epp.peers.places import Target
from epp.peers.sharing import Settings, Sharing
from epp.peers.telling import Telling
from epp.pipeline import retire
from epp.plugin import Observer
from epp.pool import Pool
from epp.router import Router
from epp.ttft.forecast import Forecaster
from tests.support import build

PLAIN = """
plugins:
- type: approx-prefix-cache-producer
- type: prefix-cache-scorer
"""
NAMES = ("a", "b")  #: of the endpoints
PROMPT = "blue" * 639  # 640 tokens with its frame


def _raise(observer: Observer, error: Exception) -> None:
    raise error


class Lane:
    """One pool of a picker."""

    def __init__(self, sharing: Sharing, name: str = "p", *, synced: bool = True) -> None:
        self.clock, self.pool, self.ledger = SystemClock(), Pool(name), Ledger()
        forecaster = Forecaster(self.ledger, self.clock)
        telling = Telling(self.ledger, lambda: self.pipeline, self.clock)
        hearing = Hearing(
            self.pool, self.ledger, forecaster, lambda: self.pipeline.plugins, self.clock
        )
        self.circle: Circle = sharing.circle(self.pool, telling, hearing)
        parts = Parts(
            clock=self.clock, random=random.Random(1), ledger=self.ledger, pool=self.pool,
            extra_observers=(forecaster, telling), forecaster=forecaster, allow_experimental=True,
        )  # fmt: skip
        _, self.pipeline = configure(PLAIN, parts)
        self.router = Router(
            self.pool, self.pipeline, self.ledger, clock=self.clock, on_observer_error=_raise
        )
        retire(None, self.pipeline, self.pool)
        self.pool.on_forget(self.ledger.forget)
        if synced:
            self.sync()

    def sync(self) -> None:
        """Know the endpoints."""
        for name in NAMES:
            self.pool.put(build.endpoint(name, host=f"10.0.0.{ord(name)}"))
        self.pool.synced = True

    async def send(self, prompt: str = PROMPT, id: str = "r") -> Exchange:
        body = json.dumps({"model": "m", "prompt": prompt, "stream": True}).encode()
        head = {":path": "/v1/completions", ":method": "POST"}
        return await self.router.route(Arrival(id, head, body))

    async def held(self, prompt: str = PROMPT) -> dict[str, int]:
        """Blocks of a prompt that each endpoint was believed to hold as it was sent, which it is."""
        exchange = await self.send(prompt, "asks")
        (match,) = exchange.request.prefix.values()
        assert isinstance(match, PrefixMatch)
        exchange.complete()
        return dict(match.held)

    def booked(self) -> dict[str, tuple[int, int]]:
        """Requests and tokens by endpoint, whoever sent them; those without any left out."""
        counts = {name: self.ledger.get(EndpointId(name)) for name in NAMES}
        return {n: (c.requests, c.tokens) for n, c in counts.items() if c.requests or c.tokens}


class Picker:
    """A process's part: a port, and lanes by pool."""

    def __init__(
        self, port: int, ports: Sequence[int], pools: Sequence[str] = ("p",),
        certificates: Path | None = None, hosts: Sequence[str] = ("127.0.0.1",), listens: str = "",
    ) -> None:  # fmt: skip
        targets = tuple(Target(host, each) for each in ports for host in hosts)
        settings = Settings(
            targets, listens or ("127.0.0.1" if len(hosts) == 1 else ""), port, certificates
        )
        self.port = port
        self.sharing = Sharing(settings, SystemClock())
        self.lanes = {name: Lane(self.sharing, name) for name in pools}
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def lane(self) -> Lane:
        """The only one."""
        (lane,) = self.lanes.values()
        return lane

    @property
    def circle(self) -> Circle:
        return self.lane.circle

    async def start(self) -> None:
        await self.sharing.start()
        work = [self.sharing.run(), *(self.sharing.serve(x.circle) for x in self.lanes.values())]
        self._tasks = [asyncio.create_task(each) for each in work]

    async def stop(self) -> None:
        """End as a process does that dies: its connections break."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await self.sharing.stop()
        for end in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(end, asyncio.CancelledError), end

    async def hears(self, *others: Picker) -> None:
        """Wait until it hears just these, in all pools."""
        wanted = {other.sharing.instance for other in others}
        await until(lambda: all(set(x.circle.followed) == wanted for x in self.lanes.values()))


@contextlib.asynccontextmanager
async def pickers(
    number: int = 2, pools: Sequence[str] = ("p",), certificates: Path | None = None
) -> AsyncIterator[list[Picker]]:
    """Pickers that hear each other."""
    ports = [free_port() for _ in range(number)]
    made = [Picker(port, ports, pools, certificates) for port in ports]
    try:
        for each in made:
            await each.start()
        for each in made:
            await each.hears(*(other for other in made if other is not each))
        yield made
    finally:
        for each in made:
            await each.stop()


async def until(condition, seconds: float = 15.0, every: float = 0.005) -> float:
    """Wait until something is so; return how long that took.

    Raises:
        TimeoutError: it is not for ``seconds``.
    """
    loop = asyncio.get_running_loop()
    begun = loop.time()
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(every)
    return loop.time() - begun


@contextlib.asynccontextmanager
async def following(port: int, asked: wire.Asked) -> AsyncIterator[grpc.aio.UnaryStreamCall]:
    """A call of a follower that a test reads by hand."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_stream(wire.FOLLOW)(wire.pack_request(asked))
        try:
            yield call
        finally:
            call.cancel()
