"""A process that is one simulated model server."""

from __future__ import annotations

import asyncio
import sys

import uvloop

from epp.model import join_host_port
from epp.process.stopping import stopping
from epp.sim.options import EngineOptions
from epp.sim.server import EngineServer


def run(options: EngineOptions) -> None:
    """Serve until SIGTERM or SIGINT; says where on one line of stdout. Makes its own event loop.

    Raises:
        ConfigError: an option is out of range.
        OSError: the address cannot be bound.
    """
    uvloop.run(_serve(options))


async def _serve(options: EngineOptions) -> None:
    server = EngineServer(options)
    told = stopping()
    port = await server.start()
    sys.stdout.write(f"listening on http://{join_host_port(options.host, port)}\n")
    sys.stdout.flush()
    ends = [asyncio.ensure_future(event.wait()) for event in (told, server.died)]
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    for end in ends:
        end.cancel()
    await server.stop()
