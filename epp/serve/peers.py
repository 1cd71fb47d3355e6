"""Other pickers, as the flags tell of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from epp.clock import Clock
from epp.collect.parse.endpoints import parse_addresses
from epp.errors import ConfigError
from epp.serve.options import ServeOptions

if TYPE_CHECKING:
    from epp.peers.sharing import Sharing


def sharing_of(options: ServeOptions, clock: Clock) -> Sharing | None:
    """Return what tells other pickers and hears them; None if there are none.

    Raises:
        ConfigError: a flag cannot be used.
    """
    if not options.peers:
        if options.peers_cert_dir:
            raise ConfigError("--peers-cert-dir needs --peers")
        return None
    from epp.peers.places import Target  # noqa: PLC0415 - only who has peers pays for gRPC
    from epp.peers.sharing import Settings, Sharing  # noqa: PLC0415

    try:
        found = parse_addresses(options.peers)
    except ValueError as error:
        raise ConfigError(f"--peers: {error}") from error
    settings = Settings(
        tuple(Target(each.host, each.port) for each in found),
        options.host,
        options.peers_port,
        Path(options.peers_cert_dir) if options.peers_cert_dir else None,
    )
    return Sharing(settings, clock)
