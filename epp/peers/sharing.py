"""The process's part in telling each other: the port, the places, and a circle for each pool."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from epp.clock import Clock
from epp.errors import ConfigError
from epp.feedback.unseen import RUN
from epp.peers import wire
from epp.peers.circle import Circle
from epp.peers.entries import Entries
from epp.peers.hearing import Hearing
from epp.peers.link import Link
from epp.peers.places import AUTHORITY, LARGEST, Place, Target, check_certificates, look_up
from epp.peers.telling import Telling
from epp.pool import Pool
from epp.process.server_tls import server_context
from epp.rpc.call import Call, EndOfMessages
from epp.rpc.server import RpcServer
from epp.rpc.status import Aborted, Code

LOOK_UP_SECONDS = 3.0  #: between two look-ups of names
SOON_SECONDS = 0.5  #: until names are looked up again when somebody unknown comes
RESTART_SECONDS = 5.0  #: before telling that failed begins again
LOOK_SECONDS = 0.25  #: between two looks for places to follow

log = logging.getLogger(__name__)


class Settings(msgspec.Struct, frozen=True):
    """What the command line says of other pickers."""

    targets: tuple[Target, ...]  #: where they may be; this picker may be among them
    host: str = "0.0.0.0"
    port: int = 9005  #: 0 takes a free one
    certificates: Path | None = None  #: holds tls.crt, tls.key and ca.crt; None: plain text


class Sharing:
    """Tells other pickers, and hears them.

    Raises:
        ConfigError: the certificates cannot be used.
    """

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self.instance = secrets.token_hex(RUN // 2)
        self.entries = Entries(self.instance)  #: of access logs, for each other
        self._clock = clock
        self.port = settings.port  #: where it listens, once started
        self.circles: dict[str, Circle] = {}  #: by pool, those that are served
        self._settings = settings
        self._places: dict[str, Place] = {}  # by address
        self._soon = asyncio.Event()
        self._server: RpcServer | None = None
        if settings.certificates is not None:
            check_certificates(settings.certificates)

    def circle(self, pool: Pool, telling: Telling, hearing: Hearing) -> Circle:
        """Return what `serve` is to be called with for a pool."""
        return Circle(
            pool.name,
            self.instance,
            telling,
            hearing,
            self.entries,
            synced=lambda: pool.synced,
            clock=self._clock,
        )

    async def start(self) -> None:
        """Listen.

        Raises:
            ConfigError: the port or the certificate cannot be had.
        """
        settings = self._settings
        server = RpcServer(
            {wire.FOLLOW: self._follow},
            most_bytes=(2**20, LARGEST),
            tls=_tls(settings.certificates),
        )
        try:
            self.port = server.bind(settings.host, settings.port)
        except OSError as error:
            raise ConfigError(f"cannot listen on port {settings.port}: {error}") from error
        self._server = server
        await server.start()

    async def stop(self) -> None:
        """Tell nobody any more."""
        server, self._server = self._server, None
        if server is not None:
            await server.stop(None)

    async def run(self) -> None:
        """Look up where pickers are, until cancelled."""
        known: dict[Target, frozenset[str]] = {}
        missed: set[Target] = set()
        try:
            while True:
                for target in self._settings.targets:
                    found = await look_up(target)
                    if found is not None:
                        known[target] = found
                        missed.discard(target)
                    elif target not in missed:  # a name server that fails does not end what works
                        missed.add(target)
                        log.warning("peers: the name %s cannot be looked up", target.host)
                await self._set_places(known)
                self._soon.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._soon.wait(), LOOK_UP_SECONDS)
                    await asyncio.sleep(SOON_SECONDS)
        finally:
            for place in self._places.values():
                await place.close()

    async def serve(self, circle: Circle) -> None:
        """Tell and hear of one pool, until cancelled; requests go on if that fails."""
        while True:
            try:
                async with circle.served:  # what served it before may still be ending
                    await self._serve(circle)
            except* Exception:
                log.exception("pool %s: telling peers failed and begins again", circle.name)
            await asyncio.sleep(RESTART_SECONDS)

    async def _serve(self, circle: Circle) -> None:
        self.circles[circle.name] = circle
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(circle.tell(), name=f"telling of {circle.name}")
                await self._follow_all(circle, group)
        finally:
            if self.circles.get(circle.name) is circle:
                del self.circles[circle.name]
            circle.end()

    def page(self) -> Mapping[str, Any]:
        """What ``/debug/state`` shows."""
        return {
            "instance": self.instance,
            "places": sorted(self._places),
            "pools": {name: circle.page() for name, circle in self.circles.items()},
        }

    async def _follow_all(self, circle: Circle, group: asyncio.TaskGroup) -> None:
        """Follow whoever is anywhere."""
        links: dict[Place, asyncio.Task[None]] = {}
        while True:
            wanted = set(self._places.values()) if circle.synced else set()
            for place in [place for place in links if place not in wanted]:
                links.pop(place).cancel()
            for place in wanted:
                if place not in links:
                    link = Link(circle, place)
                    name = f"following {place.address} of {circle.name}"
                    links[place] = group.create_task(link.run(), name=name)
            await asyncio.sleep(LOOK_SECONDS)

    async def _set_places(self, known: Mapping[Target, frozenset[str]]) -> None:
        hosts = {address: to.host for to, found in known.items() for address in found}
        gone = [self._places.pop(each) for each in set(self._places) - set(hosts)]
        for address in set(hosts) - set(self._places):
            place = Place(address, hosts[address], self._settings.certificates)
            self._places[address] = place
        for place in gone:
            log.info("peer at %s is gone", place.address)
            place.gone = True
            await place.close()

    async def _follow(self, call: Call) -> None:
        """Serve ``Follow``."""
        data = await call.read()
        if isinstance(data, EndOfMessages):
            raise Aborted(Code.INVALID_ARGUMENT, "no request to follow")
        try:
            asked = wire.unpack_request(data)
        except ValueError as error:
            raise Aborted(Code.INVALID_ARGUMENT, str(error)) from error
        circle = self.circles.get(asked.pool)
        if circle is None:
            raise Aborted(Code.NOT_FOUND, f"pool {asked.pool:.80} is not served here")
        if asked.instance not in circle.followed and asked.instance != self.instance:
            self._soon.set()  # it is new: its address may be known by now
        await circle.follow(call, asked)


def _tls(folder: Path | None) -> ssl.SSLContext | None:
    if folder is None:
        return None

    def tune(context: ssl.SSLContext) -> None:
        context.set_alpn_protocols(["h2"])
        context.load_verify_locations(cafile=folder / AUTHORITY)
        context.verify_mode = ssl.CERT_REQUIRED

    try:
        return server_context(folder, tune, port="peers")
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"--peers-cert-dir {folder}: {error}") from error
