"""Listens, and ends in order: what is open may finish, what is new goes elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from functools import partial

from epp.rpc.connection import Connection, Methods

BACKLOG = 1024  #: connections that wait to be accepted
LAST_SECONDS = 1.0  #: for calls that were cancelled, and for answers on their way
ANYWHERE = ("0.0.0.0", "::", "")  #: hosts that mean every address of both families
HANDSHAKE_SECONDS = 20.0


class RpcServer:
    """A gRPC server on one port.

    Args:
        methods: what can be called.
        most_bytes: of a message that comes in, and of one that goes out.
        tls: None speaks plain text.
    """

    def __init__(
        self,
        methods: Methods,
        *,
        most_bytes: tuple[int, int],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._methods = methods
        self._most_bytes = most_bytes
        self._tls = tls
        self._socket = socket.socket()
        self._server: asyncio.Server | None = None
        self._connections: set[Connection] = set()
        self._stopping = False
        self._empty = asyncio.Event()  #: set while there is no connection
        self._empty.set()

    def bind(self, host: str, port: int) -> int:
        """Take a port, 0 for a free one; return it.

        Raises:
            OSError: it cannot be had.
        """
        self._socket.close()
        self._socket = _listening(host, int(port))  # a look-up takes no kind of int
        return int(self._socket.getsockname()[1])

    async def start(self) -> None:
        """Begin to serve; `bind` comes before."""
        make = partial(
            Connection, self._methods, self._most_bytes, opened=self._opened, ended=self._ended
        )
        self._server = await asyncio.get_running_loop().create_server(
            make, sock=self._socket, backlog=BACKLOG, ssl=self._tls,
            ssl_handshake_timeout=None if self._tls is None else HANDSHAKE_SECONDS,
        )  # fmt: skip

    async def stop(self, grace: float | None) -> None:
        """Take nothing new, give what is open ``grace`` seconds, then cancel it.

        It may be called again meanwhile, with less.
        """
        self._stopping = True
        if self._server is not None:
            self._server.close()
        else:
            self._socket.close()
        for connection in list(self._connections):
            connection.leave()
        if grace:
            await self._until_empty(grace)
        tasks = [c.task for each in self._connections for c in each.calls.values() if c.task]
        for connection in list(self._connections):
            connection.close()
        if tasks:
            await asyncio.wait(tasks, timeout=LAST_SECONDS)
        await self._until_empty(LAST_SECONDS)
        for connection in list(self._connections):
            connection.abort()

    async def _until_empty(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._empty.wait(), seconds)

    def _opened(self, connection: Connection) -> None:
        self._connections.add(connection)
        self._empty.clear()
        if self._stopping:  # it was accepted as the port closed
            connection.leave()

    def _ended(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if not self._connections:
            self._empty.set()


def _listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens; on every address of both families, if any is meant."""
    if host in ANYWHERE:
        with contextlib.suppress(OSError):
            return _bound(socket.AF_INET6, "::", port)
        host = "0.0.0.0"
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    found.sort(key=lambda each: each[0] != socket.AF_INET)  # of a name with both, as Go has it
    family, *_, address = found[0]
    return _bound(family, str(address[0]), port)


def _bound(family: int, host: str, port: int) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        # A port whose last connections are still ending may be taken; one that is listened on not.
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(host != "::"))
        made.bind((host, port))
        made.listen(BACKLOG)
    except OSError:
        made.close()
        raise
    made.setblocking(False)
    return made
