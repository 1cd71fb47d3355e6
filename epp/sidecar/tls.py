"""TLS of the sidecar's own port: the pair in a directory, or one made at the start."""

from __future__ import annotations

import ssl
import tempfile
from pathlib import Path

from epp.extproc.port.tls import CERTIFICATE, KEY, read_pair, self_signed
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
    key, certificate = self_signed()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    shared = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 - a private folder in it
    # The ssl module reads files only, and the root file system may be read-only.
    with tempfile.TemporaryDirectory(dir=shared) as folder:
        (Path(folder) / KEY).write_bytes(key)
        (Path(folder) / CERTIFICATE).write_bytes(certificate)
        context.load_cert_chain(Path(folder) / CERTIFICATE, Path(folder) / KEY)
    return context
