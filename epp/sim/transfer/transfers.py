"""All that a simulated server does to give KV to other engines and to fetch theirs."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import aiohttp

from epp.sim.calls import Call, Plan
from epp.sim.engine import Engine
from epp.sim.options import EngineOptions
from epp.sim.transfer import params
from epp.sim.transfer.faults import Faults
from epp.sim.transfer.fetch import Failed, Fetcher
from epp.sim.transfer.kept import Kept, Shelf, fingerprint
from epp.sim.transfer.metrics import TransferMetrics
from epp.sim.transfer.params import Take
from epp.sim.transfer.side_channel import SideChannel

DEAD_PORT = 1  #: nothing listens there


class Transfers:
    """One server's KV transfers. Nothing is opened for a server without a role."""

    def __init__(self, options: EngineOptions, engine: Engine) -> None:
        self.engine_id = str(uuid.uuid4())
        self.faults = Faults(options.kv_faults, options.kv_fault_rate, options.seed)
        self.metrics = TransferMetrics()
        self.role = options.role
        self._options = options
        self._engine = engine
        self._shelf = Shelf(engine.cache.capacity)
        self._kept: dict[str, tuple[str, Kept]] = {}  #: what is told -> sequence id, what it left
        self._told: dict[str, str] = {}  #: sequence id -> what is told
        self._foreign: set[int] = set()  #: hashes of blocks here that hold another prompt's KV
        self._port = 0
        self._goodbyes: set[asyncio.Task[None]] = set()
        self._open = contextlib.AsyncExitStack()

    async def start(self) -> None:
        """Open what the role needs.

        Raises:
            OSError: the side channel's address cannot be bound.
        """
        options = self._options
        if self.role in ("prefill", "both"):
            side = SideChannel(self.engine_id, read=self._shelf.read, done=self._done)
            self._port = await side.start(options.host, options.kv_side_channel_port)
            self._open.push_async_callback(side.stop)
        if self.role in ("decode", "both"):
            session = await self._open.enter_async_context(aiohttp.ClientSession())
            self._fetcher = Fetcher(session, options.kv_connect_timeout / options.speed)

    async def stop(self) -> None:
        """Close it; who is told goodbye is waited for, within the time that a connection may take."""
        if self._goodbyes:
            await asyncio.wait(self._goodbyes)
        await self._open.aclose()

    # --- giving ----------------------------------------------------------------------------

    def offer(self, plan: Plan, cached: int, *, fault: str = "") -> dict[str, Any] | None:
        """Return the parameters of a prefill that has ended; None if it left nothing behind."""
        request = plan.request
        if request.id not in self._engine.leases or fault == "missing":
            return None
        told = f"{request.id}-{uuid.uuid4().hex[:8]}"
        count = -(-request.prompt_tokens // self._options.block_size)
        kept = self._shelf.put(told, plan.prompt, count)
        self._kept[told] = (request.id, kept)
        self._told[request.id] = told
        if fault == "expired":
            self._engine.leases.release(request.id)
            self._forget(request.id)
        port = DEAD_PORT if fault == "port-dead" else self._port
        take = Take(kept.blocks, self.engine_id, told, self._options.host, port)
        return params.answer(take, request.prompt_tokens, cached)

    def expire(self, at: float) -> None:
        """End what has been kept for too long; ``at`` is on the engine's time."""
        for request_id in self._engine.leases.expire(at):
            self._forget(request_id)

    def _forget(self, request_id: str) -> None:
        """A lease has ended unread: its blocks are used again."""
        self.metrics.expired += 1
        told = self._told.pop(request_id, None)
        if told is not None:
            self._shelf.drop(self._kept.pop(told)[1])

    def _done(self, told: str) -> None:
        entry = self._kept.pop(told, None)
        if entry is None:
            self.metrics.late_notifications += 1
            return
        self._told.pop(entry[0], None)
        self._engine.leases.release(entry[0])

    # --- fetching --------------------------------------------------------------------------

    async def fetch(self, plan: Plan, take: Take) -> bool:
        """Fetch a prompt's KV; False if it cannot be had. Spoils the plan if it is another's."""
        prompt = plan.request.prompt_tokens
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            found = await self._fetcher.read(take)
        except Failed:
            self.metrics.failed_transfers += 1
            return False
        options = self._options
        seconds = options.kv_transfer_latency + prompt / options.kv_transfer_rate
        await asyncio.sleep(seconds / options.speed)
        if found != fingerprint(plan.prompt):
            known = self._engine.cache.match(self._blocks(plan), len(plan.request.blocks))
            self._foreign.update(self._blocks(plan)[known:])
            plan.spoil()
        self.metrics.fetched(seconds=loop.time() - began, tokens=prompt, blocks=len(take.blocks))
        if not await self._fetcher.done(take):
            self.metrics.failed_notifications += 1
        return True

    def submitted(self) -> None:
        """A request is about to look for blocks: those that are gone hold nothing."""
        if self._foreign:
            cache = self._engine.cache
            self._foreign = {block for block in self._foreign if cache.match([block], 1)}

    def emitted(self, call: Call, index: int) -> None:
        """A choice gets a token: nonsense if it found blocks here that were fetched wrongly."""
        if self._foreign and not call.made(index):
            plan = call.plans[index]
            if not self._foreign.isdisjoint(self._blocks(plan)):
                plan.spoil()

    def _blocks(self, plan: Plan) -> Sequence[int]:
        """Return the hashes of a prompt's full blocks."""
        return plan.request.blocks[: plan.request.prompt_tokens // self._options.block_size]

    def refuse(self, take: Take) -> None:
        """Give back blocks that will not be fetched, in the background."""
        task = asyncio.get_running_loop().create_task(self._say_done(take))
        self._goodbyes.add(task)
        task.add_done_callback(self._goodbyes.discard)

    async def _say_done(self, take: Take) -> None:
        if not await self._fetcher.done(take):
            self.metrics.failed_notifications += 1

    def lines(self, labels: str, created: float) -> Iterator[str]:
        """Render the metrics; none without a role."""
        if self.role:
            yield from self.metrics.lines(labels, created)


def too_few(take: Take, plans: Sequence[Plan], block_size: int) -> bool:
    """Say if the blocks cannot hold one of the prompts: an engine dies of that."""
    return any(len(take.blocks) * block_size < plan.request.prompt_tokens for plan in plans)
