"""One socket that engines connect to, for all of them: who sent a message is told by its topic."""

from __future__ import annotations

from collections.abc import Callable

import zmq

from epp.collect.kv.link import HELD_MESSAGES, MOST_MESSAGE, Line, Link
from epp.collect.kv.sockets import Readable, opened
from epp.collect.parse import kv_messages

MOST_HELD = 10 * HELD_MESSAGES
_MOST_RANK = 0x7F  #: that msgpack writes as one byte

Find = Callable[[str, int], Link | None]


class Central:
    """Bound from the start.

    Args:
        address: as ``tcp://*:5557``.
        topic: what topics must begin with.
        find: the link of an engine, by its topic's name of the pod and its rank.

    Raises:
        zmq.ZMQError: the address cannot be bound.
    """

    def __init__(self, address: str, topic: str, line: Line, find: Find) -> None:
        self.unknown = 0  #: messages of nobody we know
        self._line = line
        self._find = find
        self._last: Link | None = None  # is to take in what it was told, before the next message
        socket = opened(
            zmq.SUB, line.context, rcvhwm=MOST_HELD, maxmsgsize=MOST_MESSAGE, ipv6=1
        )  # fmt: skip
        socket.bind(address)
        socket.subscribe(topic.encode())
        self._events = Readable(socket, lambda: line.pump.wake(self))

    def close(self) -> None:
        """Close the socket."""
        self._line.pump.drop(self)
        self._events.close()

    def work(self) -> bool:
        """See `pump.Worker.work`."""
        if self._last is not None and self._last.feed.busy:
            return True  # so what is held stays in the socket, which has a bound
        frames = self._events.receive()
        if frames is None:
            return False
        message = kv_messages.read(frames)
        link = None
        if message is not None:
            pod = kv_messages.topic(message.topic).pod or message.topic
            link = self._find(pod, rank_of(message.payload))
        if message is None or link is None:
            self.unknown += 1
            return True
        link.hear(message)
        self._last = link
        return True


def rank_of(payload: bytes) -> int:
    """Return the data-parallel rank that a batch of events ends with; 0 if it tells none."""
    ends = payload[:1] == b"\x93" and payload[-1] <= _MOST_RANK
    return payload[-1] if ends else 0
