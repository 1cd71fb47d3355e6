"""A decode engine's side of a transfer: asks the engine that has the KV, and waits as long as it takes.

The wire between two simulated engines is ours, since NIXL's needs the real thing: ``POST /read``
answers what the blocks hold, ``POST /done`` gives them back. It is on a port of its own, as there.
"""

from __future__ import annotations

import asyncio

import aiohttp
import msgspec

from epp.model import join_host_port
from epp.sim.transfer.params import Take


class Read(msgspec.Struct, frozen=True):
    """Asks what blocks hold."""

    engine_id: str
    first_block: int


class Found(msgspec.Struct, frozen=True):
    """Answers `Read`."""

    fingerprint: int | None  #: of the prompt; None if the blocks hold something else


class Done(msgspec.Struct, frozen=True):
    """Says that a request's blocks are not needed any more."""

    request_id: str


class Failed(Exception):
    """The KV cannot be had."""


class Fetcher:
    """Fetches KV from other engines, over one pool of connections."""

    def __init__(self, session: aiohttp.ClientSession, seconds: float) -> None:
        """``seconds`` is how long an engine that does not answer is waited for."""
        self._session = session
        self._seconds = seconds

    async def read(self, take: Take) -> int | None:
        """Return the fingerprint of what the blocks hold.

        Raises:
            Failed: nobody answers there, or it is another engine.
        """
        asked = Read(take.engine_id, take.blocks[0] if take.blocks else 0)
        try:
            async with asyncio.timeout(self._seconds):
                while True:
                    try:
                        answer = await self._post(take, "read", asked)
                        return msgspec.json.decode(answer, type=Found).fingerprint
                    except aiohttp.ClientConnectorError:
                        await asyncio.sleep(self._seconds / 10)  # as vLLM: it may come up yet
        except (TimeoutError, aiohttp.ClientError, msgspec.DecodeError) as error:
            raise Failed(str(error)) from error

    async def done(self, take: Take) -> bool:
        """Give the blocks back; False if that could not be told."""
        try:
            async with asyncio.timeout(self._seconds):
                await self._post(take, "done", Done(take.request_id))
        except (TimeoutError, aiohttp.ClientError):
            return False
        return True

    async def _post(self, take: Take, what: str, value: msgspec.Struct) -> bytes:
        url = f"http://{join_host_port(take.host, take.port)}/{what}"
        body = msgspec.json.encode(value)
        async with self._session.post(url, data=body, raise_for_status=True) as answer:
            return await answer.read()
