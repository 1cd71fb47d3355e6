"""Both legs at once, for engines that find each other: neither outlives the other's failure.

The engine here waits for the prefill as long as it likes, so a prefill that fails ends the
engine's leg at once, and the engine is told by the request's id to give up.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from epp.disagg.connectors import Connector
from epp.sidecar.head import Address
from epp.sidecar.legs.asked import Asked, Failed
from epp.sidecar.legs.engine import Engine, Opened
from epp.sidecar.legs.prefill import Answered, Prefills

LINGER = 5.0  #: seconds for which a prefill may go on after the engine's answer has ended


@contextlib.asynccontextmanager
async def both_opened(
    asked: Asked, address: Address, *, legs: tuple[Prefills, Engine], connector: Connector
) -> AsyncIterator[Opened]:
    """Send both legs; yield the engine's answer when its first bytes have come.

    Raises:
        Failed: the prefill failed before that.
        Unsplittable: the request must be computed on one engine.
        Refused: the engine did not answer.
    """
    prefills, engine = legs
    transfer = await prefills.transfer(address, asked)
    body = connector.prefill_body(asked.body, transfer)
    decode_body = connector.decode_body(asked.body, b"", transfer)
    prefill = asyncio.create_task(prefills.post(address, asked, body))
    try:
        async with _first(engine, asked, decode_body, prefill) as opened:
            yield opened
            await asyncio.wait([prefill], timeout=LINGER)
    except Failed:
        if (told := connector.abort(transfer)) is not None:
            await engine.give_up(told)
        raise
    finally:
        prefill.cancel()
        await asyncio.gather(prefill, return_exceptions=True)


@contextlib.asynccontextmanager
async def _first(
    engine: Engine, asked: Asked, body: bytes, prefill: asyncio.Task[Answered]
) -> AsyncIterator[Opened]:
    """Open the engine's leg, and give that up as soon as the prefill fails."""
    async with contextlib.AsyncExitStack() as stack:
        decode = asyncio.create_task(stack.enter_async_context(engine.opened(asked, body)))
        try:
            await asyncio.wait([prefill, decode], return_when=asyncio.FIRST_COMPLETED)
            if not decode.done() and prefill.exception() is None:
                await asyncio.wait([decode])
            if not decode.done():
                raise Failed(_why(prefill))
            yield decode.result()
        finally:
            if not decode.done():
                decode.cancel()
                await asyncio.gather(decode, return_exceptions=True)


def _why(prefill: asyncio.Task[Answered]) -> str:
    error = prefill.exception()
    return error.reason if isinstance(error, Failed) else "disconnect"
