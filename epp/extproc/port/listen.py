"""The picker's gRPC ports: what is served where, how large messages may be, and how it ends."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Sequence

from epp.errors import ConfigError
from epp.extproc.port.health import HealthService
from epp.extproc.server import ExtProcService
from epp.model import join_host_port
from epp.rpc.connection import Method, Methods
from epp.rpc.server import RpcServer

log = logging.getLogger(__name__)

MIB = 1024 * 1024
MESSAGE_SLACK = 1 * MIB  #: headers and framing around the largest body in one message
ON_ITS_WAY_SECONDS = 0.1  #: for a stream that a gateway opened before it heard that we go
LAST_WRITES_SECONDS = 1.0  #: for answers on their way when the last stream has ended


class OwnPort(int):
    """A port that one pool has for itself."""


class PickerServer:
    """The ext_proc port, and its health."""

    def __init__(
        self,
        server: RpcServer,
        port: int,
        service: ExtProcService,
        health: HealthService | None,
        *,
        secure: bool,
    ) -> None:
        self.port = port  #: the port that is bound
        self.secure = secure  #: it speaks TLS
        self._server = server
        self._service = service
        self._health = health

    async def start(self) -> None:
        """Begin to serve."""
        await self._server.start()
        log.info(
            "ext_proc on port %d speaks %s; a gateway that speaks the other only sees its "
            "connection closed: change that with --secure-serving=%s",
            self.port,
            "TLS" if self.secure else "plain text",
            "false" if self.secure else "true",
        )

    async def drain(self, grace: float, *, notice: float = 0.0) -> None:
        """Stop without dropping what is under way.

        Readiness goes off at once, and for ``notice`` seconds all goes on: the time that
        gateways need to notice. Then the port closes, connections are told to go away, streams
        that still come are answered 503, and open ones get ``grace`` seconds to finish.
        """
        if self._health is not None:
            self._health.drain()
        await asyncio.sleep(notice)
        self._service.draining = True
        closing = asyncio.ensure_future(self._server.stop(grace + LAST_WRITES_SECONDS))
        try:
            await asyncio.wait_for(self._quiet(), grace)
        except TimeoutError:
            log.warning("%d streams did not end in %.1f s", self._service.active, grace)
        # Watches of health and access logs never end by themselves.
        await self._server.stop(None)
        await closing

    async def leave(self, grace: float) -> None:
        """Close this port alone; its open streams get ``grace`` seconds to finish."""
        await self._server.stop(grace)

    async def _quiet(self) -> None:
        """Return when no stream is open, and none came that was on its way as the port closed."""
        while True:
            await self._service.idle.wait()
            await asyncio.sleep(ON_ITS_WAY_SECONDS)
            if self._service.idle.is_set():
                return

    async def stop(self) -> None:
        """Stop at once; open streams are cancelled."""
        await self._server.stop(None)


def build_server(
    service: ExtProcService,
    *,
    health: HealthService | None = None,
    methods: Sequence[Methods] = (),
    tls: ssl.SSLContext | None = None,
    host: str = "0.0.0.0",
    port: int | OwnPort = 0,
    max_message_bytes: tuple[int, int] = (0, 0),
) -> PickerServer:
    """Bind the ext_proc port. Call it in the running event loop.

    Args:
        service: the ext_proc service.
        health: served on the same port, and told to drain.
        methods: of further services on the same port.
        tls: None serves plain text.
        host: address to listen on.
        port: 0 takes a free one; see `PickerServer.port`. What comes to an `OwnPort` is for the
            pool whose it is.
        max_message_bytes: largest message received, and sent. 0 allows the service's largest body,
            and 16 MiB at least.

    Raises:
        ConfigError: the port cannot be bound.
    """
    largest = max(16 * MIB, service.settings.max_body_bytes + MESSAGE_SLACK)
    served: dict[str, Method] = {}
    own = service.methods(port if isinstance(port, OwnPort) else 0)
    for each in (own, *([health.methods] if health is not None else []), *methods):
        served.update(each)
    received, sent = max_message_bytes
    server = RpcServer(served, most_bytes=(received or largest, sent or largest), tls=tls)
    bound = _bind(server, host, port)
    return PickerServer(server, bound, service, health, secure=tls is not None)


def build_health_server(
    health: HealthService, *, host: str = "0.0.0.0", port: int = 0
) -> tuple[RpcServer, int]:
    """Bind the plain-text health port; return the server, to be started, and its port.

    Raises:
        ConfigError: the port cannot be bound.
    """
    server = RpcServer(health.methods, most_bytes=(MIB, MIB))
    return server, _bind(server, host, port)


def _bind(server: RpcServer, host: str, port: int) -> int:
    try:
        return server.bind(host, port)
    except OSError as error:
        where = join_host_port(host, port)
        raise ConfigError(f"cannot listen on {where}: {error}") from error
