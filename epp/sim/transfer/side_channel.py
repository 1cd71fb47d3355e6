"""The port on which a prefill engine answers those that fetch its KV."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from aiohttp import web

from epp.sim.transfer.fetch import Done, Found, Read


class SideChannel:
    """One engine's port. Use `start` and `stop` on the same running event loop."""

    def __init__(
        self, engine_id: str, *, read: Callable[[int], int | None], done: Callable[[str], None]
    ) -> None:
        """``read`` tells what a block holds, ``done`` is told which request's are not needed."""
        self._engine_id = engine_id
        self._read = read
        self._done = done

    async def start(self, host: str, port: int) -> int:
        """Listen; return the port.

        Raises:
            OSError: the address cannot be bound.
        """
        app = web.Application()
        app.router.add_post("/read", self._answer_read)
        app.router.add_post("/done", self._answer_done)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port).start()
        return int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        """Close the port."""
        await self._runner.cleanup()

    async def _answer_read(self, request: web.Request) -> web.Response:
        asked = msgspec.json.decode(await request.read(), type=Read)
        if asked.engine_id != self._engine_id:
            raise web.HTTPConflict
        return web.Response(body=msgspec.json.encode(Found(self._read(asked.first_block))))

    async def _answer_done(self, request: web.Request) -> web.Response:
        self._done(msgspec.json.decode(await request.read(), type=Done).request_id)
        return web.Response()
