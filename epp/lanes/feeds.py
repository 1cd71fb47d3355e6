"""What plugins of the configuration in use need beside requests: events that come in."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from epp.clock import Clock
from epp.pool import Pool
from epp.prefix.precise import PrecisePrefixCacheProducer
from epp.prefix.tokens.producer import TokenProducer

LOOK_SECONDS = 0.25  #: between two looks for a configuration that was reloaded

_log = logging.getLogger(__name__)


async def follow(plugins: Callable[[], Mapping[str, Any]], pool: Pool, clock: Clock) -> None:
    """Subscribe for every producer that reads KV events; close what is no longer configured."""
    running: dict[int, tuple[Any, asyncio.Task[None] | None]] = {}
    try:
        while True:
            wanted = {id(each): each for each in plugins().values() if _has_needs(each)}
            for key in [key for key in running if key not in wanted]:
                await _end(*running.pop(key))
            for key, made in wanted.items():
                if key not in running:
                    running[key] = (made, _begin(made, pool, clock))
            await asyncio.sleep(LOOK_SECONDS)
    finally:
        for made, task in running.values():
            await _end(made, task)


def _has_needs(made: Any) -> bool:
    return isinstance(made, PrecisePrefixCacheProducer | TokenProducer)


def _begin(made: Any, pool: Pool, clock: Clock) -> asyncio.Task[None] | None:
    if not isinstance(made, PrecisePrefixCacheProducer):
        return None
    from epp.collect.kv.subscriptions import Subscriptions  # noqa: PLC0415 - pyzmq is an extra

    task = asyncio.create_task(Subscriptions(made, pool, clock).run())
    task.add_done_callback(_tell)
    return task


def _tell(task: asyncio.Task[None]) -> None:
    """Say why a subscription ended by itself; requests go on without it."""
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("KV events come no more: %s: %s", type(error).__name__, error)


async def _end(made: Any, task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    if isinstance(made, TokenProducer):
        await made.close()
