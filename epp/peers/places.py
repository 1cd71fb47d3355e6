"""Where other pickers are: addresses behind names, and how to speak with each."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
from pathlib import Path

import grpc
import grpc.aio
import msgspec

from epp.errors import ConfigError
from epp.model import join_host_port
from epp.process.server_tls import CERTIFICATE, KEY

AUTHORITY = "ca.crt"  #: in the directory of the certificate: who signs those of other pickers
LARGEST = 2**22  #: bytes of a message
MOST_REASONS = 64  #: of a picker, which writes them itself, that are logged and remembered

log = logging.getLogger(__name__)


class Target(msgspec.Struct, frozen=True):
    """A host and port as written; the host stands for all of its addresses."""

    host: str
    port: int


class Place:
    """One address. Its channel is shared by all pools.

    Args:
        address: ``ip:port``.
        host: the name it was found by: what its certificate must be for.
        certificates: directory of ours; None speaks plain text.
    """

    def __init__(self, address: str, host: str, certificates: Path | None) -> None:
        self.address = address
        self.gone = False  #: no name leads here any more
        self._host = host
        self._certificates = certificates
        self._channel: grpc.aio.Channel | None = None
        self._stamp: object = None  # of the files that the channel was made with
        self._declined: set[str] = set()  # reasons that were told
        self._told = False  # that it cannot be heard, since it last could
        self._known = False  # it was heard once
        self._heard = 0  # pools of which it is heard

    async def channel(self) -> grpc.aio.Channel:
        """Return a channel, with today's certificates.

        Raises:
            OSError: they cannot be read, or the place is gone.
        """
        if self.gone:
            raise OSError("no name leads there any more")
        stamp = None if self._certificates is None else _stamp(self._certificates)
        if self._channel is None or stamp != self._stamp:
            before, self._channel = self._channel, self._open()
            self._stamp = stamp
            if before is not None:
                await before.close()
        return self._channel

    async def leave(self, channel: grpc.aio.Channel) -> None:
        """Dial anew the next time: nothing comes by ``channel``, and nobody said that it is closed.

        What lies between may have forgotten the connection, which ends by itself a quarter of an hour later.
        """
        if channel is self._channel:
            await self.close()

    async def close(self) -> None:
        """Close the channel."""
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()

    def met(self, instance: str) -> None:
        """A pool's news are heard from here."""
        self._heard += 1
        self._told, self._known = False, True
        if self._heard == 1:
            log.info("peer %s at %s is heard", instance, self.address)

    def parted(self) -> None:
        """A pool's news are not heard any more."""
        self._heard -= 1

    def failed(self, why: str) -> None:
        """The picker cannot be heard; said once until it can be."""
        if not self._told and not self._heard and not self.gone:
            self._told = True
            level = logging.INFO if self._known else logging.WARNING  # pods come and go
            log.log(level, "peer at %s is not heard: %s", self.address, why)

    def declined(self, why: str, *, usual: bool) -> None:
        """It does not want to be heard, which is ``usual`` for a picker that finds itself."""
        if usual or why in self._declined or len(self._declined) >= MOST_REASONS:
            log.debug("peer at %s: %s", self.address, why)
        else:
            self._declined.add(why)
            log.warning("peer at %s tells nothing: %s", self.address, why)

    def _open(self) -> grpc.aio.Channel:
        ip = ipaddress.ip_address(self.address.rpartition(":")[0].strip("[]"))
        target = f"ipv{ip.version}:{self.address}"
        options: list[tuple[str, str | int]] = [
            ("grpc.enable_http_proxy", 0),
            ("grpc.enable_retries", 0),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.max_receive_message_length", LARGEST),
            ("grpc.initial_reconnect_backoff_ms", 200),  # the pauses between calls are ours
            ("grpc.max_reconnect_backoff_ms", 1000),
        ]
        if self._certificates is None:
            return grpc.aio.insecure_channel(target, options=options)
        if not _is_ip(self._host):
            options.append(("grpc.ssl_target_name_override", self._host))
        folder = self._certificates
        credentials = grpc.ssl_channel_credentials(
            root_certificates=(folder / AUTHORITY).read_bytes(),
            private_key=(folder / KEY).read_bytes(),
            certificate_chain=(folder / CERTIFICATE).read_bytes(),
        )
        return grpc.aio.secure_channel(target, credentials, options=options)


async def look_up(target: Target) -> frozenset[str] | None:
    """Return every ``ip:port`` behind a name; None if it cannot be told now."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    except OSError:
        return None
    return frozenset(join_host_port(str(address[0]), target.port) for *_, address in found)


def check_certificates(folder: Path) -> None:
    """Find out whether there is all that is needed.

    Raises:
        ConfigError: a file cannot be read.
    """
    for name in (CERTIFICATE, KEY, AUTHORITY):
        try:
            (folder / name).read_bytes()
        except OSError as error:
            raise ConfigError(f"--peers-cert-dir: {error}") from error


def _stamp(folder: Path) -> tuple[object, ...]:
    stats = [(folder / name).stat() for name in (CERTIFICATE, KEY, AUTHORITY)]
    return tuple((s.st_ino, s.st_mtime_ns, s.st_size) for s in stats)


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
