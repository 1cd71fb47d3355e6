"""ZMQ sockets on an event loop, without a task or a future for each message.

ZMQ tells of messages by a file descriptor that becomes readable once, not for each: whoever is
told must read until nothing is left, or come back by itself.

**Source:** ``ZMQ_FD`` in zmq_getsockopt(3).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import zmq

MOST_SOCKETS = 16_384


def context() -> zmq.Context[zmq.Socket[bytes]]:
    """Return a context with room for the sockets of thousands of engines."""
    made: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    made.set(zmq.MAX_SOCKETS, MOST_SOCKETS)
    made.set(zmq.BLOCKY, 0)
    return made


class Readable:
    """One socket whose owner is told, on the running event loop, that there may be messages.

    Args:
        socket: owned from now on.
        tell: called without arguments; it calls `receive` until that returns None, some time.
    """

    def __init__(self, socket: zmq.Socket[bytes], tell: Callable[[], None]) -> None:
        self.socket = socket
        self._loop = asyncio.get_running_loop()
        self._fd = int(socket.get(zmq.FD))
        self._loop.add_reader(self._fd, tell)
        self._loop.call_soon(tell)  # what came before anybody listened is not told again

    def receive(self) -> Sequence[bytes] | None:
        """Return the frames of the next message; None if there is none."""
        try:
            return self.socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return None

    def send(self, frames: Sequence[bytes]) -> bool:
        """Send a message; False if there is no room for it, or nobody to send it to."""
        try:
            self.socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def close(self) -> None:
        """Close the socket, at once."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            self._fd = -1
            self.socket.close(0)


def opened(kind: int, where: zmq.Context[zmq.Socket[bytes]], **settings: Any) -> zmq.Socket[bytes]:
    """Return a new socket of a kind, with options by their names in lower case.

    Raises:
        zmq.ZMQError: there are too many, or a setting is none.
    """
    socket = where.socket(kind)
    try:
        socket.set(zmq.LINGER, 0)
        for name, value in settings.items():
            socket.set(getattr(zmq, name.upper()), value)
    except zmq.ZMQError:
        socket.close(0)
        raise
    return socket
