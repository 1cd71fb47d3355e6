"""KV events over real sockets while requests are routed, on one event loop as in the picker.

Engines in another process publish at a rate; prompts of 8k token ids are routed meanwhile, and now
and then an engine of this process publishes a block of its own, to see when it is known.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import struct
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import msgspec
import uvloop
import zmq

from epp.bench.schedule import pool_of, router_of
from epp.clock import SystemClock
from epp.collect.kv.feed import Feed
from epp.collect.kv.link import Line, Link, Where
from epp.collect.kv.pump import Pump
from epp.collect.kv.sockets import context, opened
from epp.exchange import Exchange
from epp.local.processes import running
from epp.model import Arrival, EndpointId, Outcome
from epp.prefix.precise import PrecisePrefixCacheProducer
from epp.process.garbage import settle
from epp.traffic.figures import percentile

RATE = 110_000.0  #: blocks told a second
ENGINES = 20
ENDPOINTS = 100
REQUESTS_PER_SECOND = 50.0
PROMPT_TOKENS = 8192
TENANTS = 4
PROBES_PER_SECOND = 20.0
PROBE_SECONDS = 10.0  #: that a block may take to be known
WARM_SECONDS = 1.0
OPEN = 200  #: exchanges at a time
HEADERS = {":method": "POST", ":path": "/v1/completions", "content-type": "application/json"}
CONFIG = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: token-producer
- type: precise-prefix-cache-producer
- type: prefix-cache-scorer
  parameters: {prefixMatchInfoProducerName: precise-prefix-cache-producer}
- type: in-flight-load-scorer
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: prefix-cache-scorer, weight: 3}
  - {pluginRef: in-flight-load-scorer, weight: 2}
"""


class Live(msgspec.Struct, frozen=True):
    """What was seen. Milliseconds count from when a request, or a message, was due."""

    blocks_per_second: float  #: taken in
    lost: int  #: messages
    cpu_percent: float  #: of one core, for all of it
    pick_p50_ms: float
    pick_p99_ms: float
    requests: int
    visible_p50_ms: float
    visible_p99_ms: float
    probes: int


@lru_cache(maxsize=1)
def live(seconds: float) -> Live:
    """Measure for so long; asked again, tell the same."""
    found: Live = uvloop.run(_live(seconds))
    return found


async def _live(seconds: float) -> Live:
    with tempfile.TemporaryDirectory(prefix="epp-bench-") as folder:
        command = [sys.executable, "-m", "epp.bench.kv_publisher", str(RATE), str(ENGINES)]
        async with running(command, Path(folder) / "publisher.log") as publisher:
            world = _World(json.loads(publisher.first_line))
            try:
                return await world.measure(seconds)
            finally:
                world.close()


class _World:
    """A router with its index, feeds of all engines, and one engine that is ours."""

    def __init__(self, addresses: Sequence[str]) -> None:
        draw, clock = random.Random(9), SystemClock()
        pool = pool_of(ENDPOINTS, draw, clock.now())
        self.router = router_of(pool, draw, clock, config=CONFIG)
        plugins = self.router.pipeline.plugins
        self.producer: PrecisePrefixCacheProducer = plugins[PrecisePrefixCacheProducer.type]
        self._probed = asyncio.Event()
        self._probed_at = 0.0
        self._context = context()
        self._line = Line(self._context, Pump(), clock)
        self.probe = opened(zmq.PUB, self._context)
        self.probe.bind("tcp://127.0.0.1:*")
        ours = self.probe.get_string(zmq.LAST_ENDPOINT)
        names = [endpoint.id for endpoint in pool.snapshot()]
        self.probed = names[0]
        self._links = [
            self._link(name, where) for name, where in zip(names, [ours, *addresses], strict=False)
        ]
        self._arrivals = _arrivals(draw)
        self._numbers = itertools.count()  # of the probe's messages

    def close(self) -> None:
        """Close all sockets."""
        for link in self._links:
            link.close()
        self._context.destroy(0)

    def _link(self, endpoint_id: EndpointId, address: str) -> Link:
        engine = self.producer.engines.add(endpoint_id, 0, can_ask=False)
        link = Link(Feed(engine, self.producer.index, self._told), Where(address), self._line)
        link.open()
        return link

    def _told(self, endpoint_id: EndpointId, rank: int) -> None:
        self.producer.computed(endpoint_id, rank)
        if endpoint_id == self.probed:
            self._probed_at = time.perf_counter()
            self._probed.set()

    async def measure(self, seconds: float) -> Live:
        """Warm up, then measure."""
        await asyncio.sleep(WARM_SECONDS)
        settle()
        ticking = asyncio.create_task(self._tick())
        await asyncio.gather(self._route(WARM_SECONDS), self._send_probes(WARM_SECONDS))
        before, lost = self._blocks(), self._lost()
        began, cpu = time.perf_counter(), time.process_time()
        picks, seen = await asyncio.gather(self._route(seconds), self._send_probes(seconds))
        took = time.perf_counter() - began
        ticking.cancel()
        return Live(
            (self._blocks() - before) / took,
            self._lost() - lost,
            (time.process_time() - cpu) / took * 100,
            percentile(picks, 50) or 0.0, percentile(picks, 99) or 0.0, len(picks),
            percentile(seen, 50) or 0.0, percentile(seen, 99) or 0.0, len(seen),
        )  # fmt: skip

    def _lost(self) -> int:
        return sum(each.sequence.lost for each in self.producer.engines)

    def _blocks(self) -> int:
        figures = self.producer.index.figures()
        return figures["stored"] + figures["removed"]

    async def _tick(self) -> None:
        while True:
            for link in self._links:
                link.tick()
            self.producer.index.expire(self._line.clock.now())
            await asyncio.sleep(0.1)

    async def _route(self, seconds: float) -> list[float]:
        """Route requests as they are due; return how long after that each was picked."""
        took: list[float] = []
        exchanges: list[Exchange] = []
        began = time.perf_counter()
        for number in range(int(seconds * REQUESTS_PER_SECOND)):
            due = began + number / REQUESTS_PER_SECOND
            await asyncio.sleep(max(due - time.perf_counter(), 0.0))
            exchanges.append(await self.router.route(self._arrivals[number % len(self._arrivals)]))
            took.append((time.perf_counter() - due) * 1000)
            if len(exchanges) > OPEN:
                exchanges.pop(0).end(Outcome.COMPLETED)
        return took

    async def _send_probes(self, seconds: float) -> list[float]:
        """Publish blocks; return how long each took to be known."""
        took: list[float] = []
        for _ in range(int(seconds * PROBES_PER_SECOND)):
            number = next(self._numbers)
            await asyncio.sleep(1 / PROBES_PER_SECOND)
            event = ["BlockStored", [number + 1], None, [number] * 16, 16]
            payload = msgspec.msgpack.encode([time.time(), [event], 0])
            self._probed.clear()
            sent = time.perf_counter()
            self.probe.send_multipart([b"kv@probe@model", number.to_bytes(8, "big"), payload])
            async with asyncio.timeout(PROBE_SECONDS):
                await self._probed.wait()
            took.append((self._probed_at - sent) * 1000)
        return took


def _arrivals(draw: random.Random) -> list[Arrival]:
    shared = [[draw.randrange(150_000) for _ in range(PROMPT_TOKENS // 2)] for _ in range(TENANTS)]
    bodies = []
    for _ in range(100):
        own = struct.unpack(f"<{PROMPT_TOKENS // 2}H", draw.randbytes(PROMPT_TOKENS))
        prompt = [*draw.choice(shared), *own]
        bodies.append(msgspec.json.encode({"model": "bench", "prompt": prompt}))
    return [Arrival(f"r-{i}", HEADERS, body) for i, body in enumerate(bodies)]
