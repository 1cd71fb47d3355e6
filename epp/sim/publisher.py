"""Publishes an engine's KV events over ZMQ, and answers who asks for old ones, as vLLM does.

**Source:** ``ZmqEventPublisher`` of vLLM: three frames, numbers from 0 on; replays from a ROUTER socket.
"""

from __future__ import annotations

import random
import time
from collections import deque
from typing import Any

import zmq

from epp.collect.kv.sockets import Readable, context, opened
from epp.sim.engine import Engine
from epp.sim.kv_events import Encoder
from epp.sim.options import EngineOptions

NUMBER_BYTES = 8
END = b"\xff" * NUMBER_BYTES


class Publisher:
    """Of one engine, on the running event loop.

    Raises:
        zmq.ZMQError: an address cannot be bound.
    """

    def __init__(self, options: EngineOptions, engine: Engine) -> None:
        self._engine = engine
        self._encoder = Encoder(
            options.kv_events_layout,
            block_tokens=options.block_size,
            rank=options.data_parallel_rank,
        )
        self._untold: list[Any] = []  # that the next step publishes
        self.sent = 0  #: messages numbered
        self.replays = 0  #: that were answered
        self._options = options
        self._topic = options.kv_events_topic.encode()
        self._random = random.Random(options.seed)
        self._kept: deque[tuple[bytes, bytes]] = deque(maxlen=options.kv_events_buffer)
        self._context = context()
        self._replays: Readable | None = None
        self._out = opened(zmq.PUB, self._context, sndhwm=100_000)
        if options.kv_events_connect:
            self._out.connect(options.kv_events_connect)
        else:
            _bind(self._out, options, options.kv_events_port)
        if options.kv_events_replay_port is not None:
            router = opened(zmq.ROUTER, self._context, sndhwm=0)
            _bind(router, options, options.kv_events_replay_port)
            self._replays = Readable(router, self._asked)

    def step(self) -> None:
        """Publish what a step did to the cache, and what was done to it before."""
        news = self._encoder.news(*self._engine.news())
        events = [*self._untold, *news, *self._encoder.moved(self._engine.tiers.news())]
        self._untold.clear()
        if events:
            self._publish(self._encoder.payload(time.time(), events))

    def cleared(self) -> None:
        """Note that the idle blocks were given up; told as all are, if no others are left."""
        if not self._engine.cache.known:
            self._engine.news()  # all that it would tell is gone
            self._untold = [self._encoder.cleared()]

    def _publish(self, payload: bytes) -> None:
        """Send a payload, or lose it, as told."""
        number = self.sent.to_bytes(NUMBER_BYTES, "big")
        self.sent += 1
        self._kept.append((number, payload))
        if self._random.random() >= self._options.kv_events_drop:
            self._out.send_multipart([self._topic, number, payload], zmq.NOBLOCK)

    def sources(self) -> dict[str, Any]:
        """Return what ``/kv_event_sources`` tells."""
        options = self._options
        replay = None
        if self._replays is not None:
            replay = _told(self._replays.socket)
        return {
            str(options.data_parallel_rank): {
                "enable_kv_cache_events": True,
                "publisher": "zmq",
                "endpoint": options.kv_events_connect or _told(self._out),
                "replay_endpoint": replay,
                "buffer_steps": options.kv_events_buffer,
                "topic": options.kv_events_topic,
            }
        }

    def close(self) -> None:
        """Close all sockets."""
        if self._replays is not None:
            self._replays.close()
        self._out.close(0)
        self._context.term()

    def _asked(self) -> None:
        """Answer all that was asked."""
        replays = self._replays
        while replays is not None and (frames := replays.receive()) is not None:
            if len(frames) != 3 or len(frames[2]) != NUMBER_BYTES:
                continue
            self.replays += 1
            who, start = frames[0], int.from_bytes(frames[2], "big")
            for number, payload in self._kept:
                if int.from_bytes(number, "big") >= start:
                    replays.send([who, b"", *self._head(), number, payload])
            replays.send([who, b"", *([b""] if self._head() else []), END, b""])

    def _head(self) -> list[bytes]:
        """Return the topic frame, which engines that send arrays leave out of replays."""
        return [self._topic] if self._options.kv_events_layout == "map" else []


def _bind(socket: zmq.Socket[bytes], options: EngineOptions, port: int | None) -> None:
    wanted = f"{port + options.data_parallel_rank}" if port else "*"
    socket.bind(f"tcp://{options.host}:{wanted}")


def _told(socket: zmq.Socket[bytes]) -> str:
    """Return where a socket listens, as vLLM tells it: any host."""
    where = bytes(socket.get(zmq.LAST_ENDPOINT))
    return "tcp://*:" + where.decode().rstrip("\0").rpartition(":")[2]
