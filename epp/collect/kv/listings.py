"""Asks engines which models they serve, so that an adapter's first request is known for one.

Adapters come and go while an engine runs, so each is asked again and again. Nothing waits for an
answer; see `ModelNames` for what holds until then.
"""

from __future__ import annotations

import asyncio

from epp.clock import Clock
from epp.collect.fetch import Fetcher, NoPage
from epp.collect.kv.turns import Turn
from epp.collect.parse.models import listed
from epp.model import Endpoint, EndpointId
from epp.pool import Pool
from epp.prefix.feed.names import ModelNames

PATH = "/v1/models"
AGAIN_SECONDS = 30.0  #: after an answer
AT_ONCE = 32  #: engines that are asked


class Listings:
    """Of a pool's endpoints, into ``names``."""

    def __init__(self, names: ModelNames, pool: Pool, clock: Clock) -> None:
        self._names = names
        self._pool = pool
        self._clock = clock
        self._turns: dict[EndpointId, Turn] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def tick(self, fetcher: Fetcher) -> None:
        """Ask those whose turn it is."""
        now = self._clock.now()
        for endpoint in self._pool.snapshot():
            turn = self._turns.get(endpoint.id)
            if turn is None:
                turn = self._turns[endpoint.id] = Turn(now)
                self._names.asked(endpoint.id)
            if now >= turn.at and len(self._tasks) < AT_ONCE:
                turn.begin(now)
                task = asyncio.create_task(self._ask(fetcher, endpoint, turn))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    def forget(self, endpoint_id: EndpointId) -> None:
        """Forget an endpoint; if it is still there, its process is another one and is asked anew."""
        self._turns.pop(endpoint_id, None)
        if self._pool.get(endpoint_id) is None:
            self._names.forget(endpoint_id)

    def close(self) -> None:
        """Ask no more, and forget what was told."""
        for task in self._tasks:
            task.cancel()
        for endpoint_id in self._turns:
            self._names.forget(endpoint_id)

    async def _ask(self, fetcher: Fetcher, endpoint: Endpoint, turn: Turn) -> None:
        try:
            told = listed(await fetcher.get(endpoint))
        except (NoPage, ValueError):
            told = None
        if self._turns.get(endpoint.id) is not turn:
            return  # gone meanwhile
        self._names.told(endpoint.id, told)
        if told is not None:
            turn.done(self._clock.now() + AGAIN_SECONDS)
