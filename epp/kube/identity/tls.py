"""The TLS context of a server, built again when a certificate file changes."""

from __future__ import annotations

import os
import ssl
import tempfile
from pathlib import Path

import msgspec

from epp.kube.identity.credentials import Credential, Pem

Stamp = tuple[tuple[int, int], ...]


class Trust(msgspec.Struct, frozen=True):
    """How the server is known."""

    authority: Pem = Pem()  #: its authorities; none: the system's
    skip_verify: bool = False  #: accept any certificate
    server_name: str = ""  #: the name in its certificate; "": the host's


class Tls:
    """Hands out the context for a credential."""

    def __init__(self, trust: Trust) -> None:
        self._trust = trust
        self._context: ssl.SSLContext | None = None
        self._built_of: tuple[Credential, Stamp] | None = None

    def context(self, credential: Credential) -> ssl.SSLContext:
        """The context for a request.

        Files that are half-written when they change leave the last context in use.

        Raises:
            OSError, ValueError: the first context cannot be built (`ssl.SSLError` is an OSError).
        """
        shown = msgspec.structs.replace(credential, token="")
        try:
            built_of = shown, self._stamp(shown)
            if self._context is None or built_of != self._built_of:
                self._context = build_context(self._trust, shown)
                self._built_of = built_of
        except (OSError, ValueError):
            if self._context is None:
                raise
        return self._context

    def _stamp(self, shown: Credential) -> Stamp:
        every = (self._trust.authority, shown.certificate, shown.key)
        found = (Path(pem.path).stat() for pem in every if pem.path)
        return tuple((status.st_ino, status.st_mtime_ns) for status in found)


def build_context(trust: Trust, credential: Credential) -> ssl.SSLContext:
    """A client's context; see `Tls.context` for what it raises."""
    authority = trust.authority
    context = ssl.create_default_context(
        cafile=authority.path or None, cadata=authority.text or None
    )
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Python 3.13 refuses authorities without a key identifier, which many clusters' have.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if trust.skip_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if credential.certificate:
        _show(context, credential)
    return context


def _show(context: ssl.SSLContext, credential: Credential) -> None:
    """Load the client's certificate; `ssl` takes files only, so texts lie in one for a moment."""
    with tempfile.TemporaryDirectory() as folder:  # only its owner may look inside
        certificate = _file(credential.certificate, folder, "certificate")
        key = _file(credential.key, folder, "key") if credential.key else None
        context.load_cert_chain(certificate, key, password=_no_password)


def _file(pem: Pem, folder: str, name: str) -> str:
    if pem.path:
        return pem.path
    path = Path(folder) / name
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(pem.text)
    return str(path)


def _no_password() -> str:
    raise ValueError("the client's key is encrypted, and there is nobody to ask for its password")
