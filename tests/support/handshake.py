"""A TLS client that only shakes hands, and tells what was agreed on."""

from __future__ import annotations

import socket
import ssl
import warnings
from hashlib import sha256

import msgspec

HANDSHAKE_SECONDS = 5.0


class Agreed(msgspec.Struct, frozen=True):
    """What client and server settled on."""

    version: str
    suite: str
    protocol: str | None  #: by ALPN
    certificate: bytes  #: DER

    @property
    def fingerprint(self) -> str:
        return sha256(self.certificate).hexdigest()


def shake_hands(
    port: int,
    *,
    version: ssl.TLSVersion | None = None,
    suites: str = "",
    protocols: tuple[str, ...] = ("h2", "http/1.1"),
) -> Agreed | None:
    """Shake hands with 127.0.0.1, believing any certificate; None if the server will not.

    Args:
        port: of the server.
        version: the only one the client speaks; None speaks all.
        suites: OpenSSL's names of those for TLS 1.2; "" is the default.
        protocols: offered by ALPN.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(list(protocols))
    context.set_ciphers(suites or "DEFAULT@SECLEVEL=0")
    if version is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of TLS 1.1, the point of a test
            context.minimum_version = context.maximum_version = version
    try:
        with (
            socket.create_connection(("127.0.0.1", port), HANDSHAKE_SECONDS) as plain,
            context.wrap_socket(plain) as secure,
        ):
            cipher = secure.cipher()
            assert cipher is not None
            certificate = secure.getpeercert(binary_form=True) or b""
            version_name = secure.version() or ""
            return Agreed(version_name, cipher[0], secure.selected_alpn_protocol(), certificate)
    except (ssl.SSLError, ConnectionError):
        return None
