"""Engines that publish KV events at a rate: ``python -m epp.bench.kv_publisher RATE ENGINES``.

Its first line tells where each of them publishes, and it publishes from then on until it is told to end.
Messages are made before, so that little of the machine is taken from who listens.
"""

from __future__ import annotations

import itertools
import json
import random
import signal
import sys
import time
from collections.abc import Iterator

import zmq

from epp.bench.kv import request

CYCLE = 40  #: requests of each engine, told again and again; each takes its blocks away again
TURN_SECONDS = 0.002  #: of messages at a time, as an engine's step tells
MOST_HELD = 100_000


def main() -> None:
    """Publish until told to end."""
    rate, engines = float(sys.argv[1]), int(sys.argv[2])
    context = zmq.Context()
    sockets = [_bound(context) for _ in range(engines)]
    told = [socket.get_string(zmq.LAST_ENDPOINT) for socket in sockets]
    cycles = [list(_cycle(random.Random(engine))) for engine in range(engines)]
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    _publish(list(zip(sockets, map(itertools.cycle, cycles), strict=True)), rate)


def _bound(context: zmq.Context[zmq.Socket[bytes]]) -> zmq.Socket[bytes]:
    socket = context.socket(zmq.PUB)
    socket.set(zmq.SNDHWM, MOST_HELD)
    socket.bind("tcp://127.0.0.1:*")
    return socket


def _cycle(draw: random.Random) -> Iterator[tuple[bytes, int]]:
    for _ in range(CYCLE):
        yield from request(draw)


def _publish(
    engines: list[tuple[zmq.Socket[bytes], Iterator[tuple[bytes, int]]]], rate: float
) -> None:
    numbers = [itertools.count() for _ in engines]
    began, blocks = time.perf_counter(), 0
    while True:
        due = (time.perf_counter() - began) * rate
        while blocks < due:
            for number, (socket, payloads) in zip(numbers, engines, strict=True):
                payload, count = next(payloads)
                head = next(number).to_bytes(8, "big")
                socket.send_multipart([b"kv@bench@model", head, payload], zmq.NOBLOCK)
                blocks += count
        time.sleep(TURN_SECONDS)


if __name__ == "__main__":
    main()
