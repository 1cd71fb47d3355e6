"""What plugins of the configuration in use need beside requests: events, connections closed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from epp.clock import Clock
from epp.disagg.remote.client import PrefillClient
from epp.pool import Pool
from epp.prefix.precise import PrecisePrefixCacheProducer
from epp.prefix.tokens.producer import TokenProducer

RETRY_SECONDS = 2.0  #: after a subscription that ended by itself
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
    return isinstance(made, PrecisePrefixCacheProducer | TokenProducer | PrefillClient)


def _begin(made: Any, pool: Pool, clock: Clock) -> asyncio.Task[None] | None:
    if not isinstance(made, PrecisePrefixCacheProducer):
        return None
    return asyncio.create_task(_subscribe(made, pool, clock))


async def _subscribe(made: PrecisePrefixCacheProducer, pool: Pool, clock: Clock) -> None:
    """Subscribe, again and again if that is not possible; requests go on meanwhile."""
    from epp.collect.kv.subscriptions import Subscriptions  # noqa: PLC0415 - pyzmq is an extra

    while True:
        try:
            await Subscriptions(made, pool, clock).run()
        except Exception as error:  # noqa: BLE001 - whatever it is, it may be over later
            _log.error("KV events do not come: %s: %s", type(error).__name__, error)
        await asyncio.sleep(RETRY_SECONDS)


async def _end(made: Any, task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    if isinstance(made, TokenProducer | PrefillClient):
        await made.close()
