"""TLS towards a server we ask: an engine's metrics, a picker's admin port."""

from __future__ import annotations

import ssl


def client_context(ca: str, certificate: str, key: str, *, verify: bool) -> ssl.SSLContext:
    """Return how to speak TLS. Paths of PEM files; "" is none.

    Args:
        ca: who may have signed the server's certificate; none: the system's authorities.
        certificate: our own, if the server wants one.
        key: its key, if that is not in the same file.
        verify: False accepts any certificate.

    Raises:
        OSError: a file cannot be read, or is none.
    """
    context = ssl.create_default_context(cafile=ca or None)
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if certificate:
        context.load_cert_chain(certificate, key or None)
    return context
