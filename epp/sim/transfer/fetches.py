"""Transfers under way at a decode engine: begun when the engine has room, ended with its requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from epp.sim.asked import Refused
from epp.sim.calls import Call
from epp.sim.pacer import Pacer
from epp.sim.transfer.params import Take
from epp.sim.transfer.transfers import Transfers


class Fetches:
    """One task for each request whose KV is being fetched."""

    def __init__(self, transfers: Transfers, find: Callable[[str], tuple[Call, int]]) -> None:
        """``find`` returns the call of a sequence, and which of its choices it is."""
        self._transfers = transfers
        self._find = find
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._read: set[str] = set()  #: sequences whose KV has come

    def begin(self, pacer: Pacer, name: str, *, recompute: bool) -> None:
        """Fetch a sequence's KV; without it compute here if ``recompute``, else fail."""
        task = asyncio.get_running_loop().create_task(self._fetch(pacer, name, recompute=recompute))
        self._tasks[name] = task
        task.add_done_callback(lambda done: self._tasks.pop(name, None))

    async def _fetch(self, pacer: Pacer, name: str, *, recompute: bool) -> None:
        call, index = self._find(name)
        if call.take is None:
            raise AssertionError(f"sequence {name} fetches KV from nowhere")
        good = await self._transfers.fetch(call.plans[index], call.take)
        if good:
            self._read.add(name)
        if good or recompute:
            pacer.fetched(name, good=good)
            return
        pacer.abort(name)
        call.fail(Refused(500, "Internal server error", kind="InternalServerError"))

    def forget(self, name: str, take: Take | None) -> None:
        """A sequence has ended; with ``take`` before its time, so that its KV may still be kept."""
        task = self._tasks.get(name)
        if task is not None:
            task.cancel()
        if take is not None and name not in self._read:
            self._transfers.refuse(take)
        self._read.discard(name)
