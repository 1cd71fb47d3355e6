"""TLS of the sidecar's own port: the pair in a directory, or one made at the start."""

from __future__ import annotations

import ssl
from pathlib import Path

from epp.extproc.port.tls import load_pair, read_pair, self_signed
from epp.serve.admin_port import reloading
from epp.sidecar.options import SidecarOptions


def server_context(options: SidecarOptions) -> ssl.SSLContext | None:
    """Return how clients are spoken to; None in plain HTTP.

    Raises:
        ConfigError: the pair cannot be read.
    """
    if not options.secure_proxy:
        return None
    if options.cert_path:
        read_pair(Path(options.cert_path))
        return reloading(Path(options.cert_path), "sidecar")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    load_pair(context, self_signed())
    return context
