"""Many engines in one process: ``python -m epp.soak.pods OPTIONS``, which are JSON of `Pods`.

Its first line tells their ports. Each is a whole `epp engine`, with sockets of its own.
"""

from __future__ import annotations

import asyncio
import json
import sys

import msgspec
import uvloop

from epp.process.stopping import stopping
from epp.sim.options import EngineOptions
from epp.sim.server import EngineServer


class Pods(msgspec.Struct, frozen=True):
    """What to play."""

    count: int = 100
    kv_blocks: int = 3000  #: of each
    drop: float = 0.0  #: fraction of messages with events that are lost
    buffer: int = 10_000  #: messages that an engine keeps for who asks
    mute: int = 0  #: engines whose messages are all lost, and that answer nobody
    restart_seconds: float = 0.0  #: between two restarts of one engine or another; 0 is never


def main() -> None:
    """Serve until told to end."""
    uvloop.run(_serve(msgspec.json.decode(sys.argv[1], type=Pods)))


def options_of(pods: Pods, number: int) -> EngineOptions:
    """Return what engine ``number`` is."""
    mute = number < pods.mute
    return EngineOptions(
        name=f"pod-{number}",
        seed=number,
        speed=10.0,
        kv_blocks=pods.kv_blocks,
        kv_events_port=0,
        kv_events_replay_port=None if mute else 0,
        kv_events_buffer=pods.buffer,
        kv_events_drop=1.0 if mute else pods.drop,
    )


async def _serve(pods: Pods) -> None:
    over = stopping()
    servers = [EngineServer(options_of(pods, number)) for number in range(pods.count)]
    ports = [await server.start() for server in servers]
    sys.stdout.write(json.dumps(ports) + "\n")
    sys.stdout.flush()
    restarting = asyncio.create_task(_restart(pods, servers, ports))
    await over.wait()
    restarting.cancel()
    await asyncio.gather(restarting, *(each.stop() for each in servers), return_exceptions=True)


async def _restart(pods: Pods, servers: list[EngineServer], ports: list[int]) -> None:
    """Restart one engine after the other, each at its address: its cache is empty, its numbers new."""
    number = pods.mute
    while pods.restart_seconds and pods.count > pods.mute:
        await asyncio.sleep(pods.restart_seconds)
        await servers[number].stop()
        options = msgspec.structs.replace(options_of(pods, number), port=ports[number])
        servers[number] = EngineServer(options)
        await servers[number].start()
        number = max((number + 1) % pods.count, pods.mute)


if __name__ == "__main__":
    main()
