"""Asks a running picker's metrics port, for `epp top` and `epp explain`.

The port may speak TLS, ask for a token of the cluster, or for a client's certificate. A token goes
only where nobody reads it on the way: over TLS, or to this machine.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import ipaddress
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from epp.errors import ConfigError
from epp.process.client_tls import client_context

MOST_BYTES = 64 * 2**20  #: of an answer


class Admin(msgspec.Struct, frozen=True, kw_only=True):
    """Where a picker's metrics port is, and how to be let in. Paths are "" if not given."""

    url: str  #: ``HOST:PORT`` is http
    token_file: str = ""  #: holds a bearer token
    ca_file: str = ""  #: authorities to trust instead of the system's
    cert_file: str = ""  #: our own certificate
    key_file: str = ""  #: and its key; "": in `cert_file`
    insecure: bool = False  #: believe any certificate


class Refused(ConfigError):
    """The picker answered with an error.

    Args:
        message: its own words, or what its status means.
        status: of the answer.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A picker redirects nobody; a token must not follow."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def admin_of(parsed: argparse.Namespace) -> Admin:
    """Return what the flags of `epp.commands.tools` say.

    Raises:
        ConfigError: the URL is none.
    """
    admin = Admin(
        url=_url(parsed.admin),
        token_file=parsed.token_file,
        ca_file=parsed.ca_file,
        cert_file=parsed.cert_file,
        key_file=parsed.key_file,
        insecure=parsed.insecure,
    )
    if admin.key_file and not admin.cert_file:
        raise ConfigError("--key-file is the key of a certificate: --cert-file is missing")
    return admin


def ask(admin: Admin, path: str, *, seconds: float) -> bytes:
    """Get ``path`` of the picker, each wait bounded by ``seconds``.

    Raises:
        Refused: it answered with an error; the message is its own, if it told one.
        ConfigError: it cannot be asked.
    """
    request = urllib.request.Request(_url(admin.url) + path)  # noqa: S310 - `_url` checks it
    if admin.token_file:
        request.add_unredirected_header("Authorization", f"Bearer {_token(admin)}")
    opener = urllib.request.build_opener(
        urllib.request.HTTPSHandler(context=_context(admin)), _NoRedirects
    )
    try:
        with opener.open(request, timeout=seconds) as answer:
            return bytes(answer.read(MOST_BYTES))
    except urllib.error.HTTPError as error:
        raise Refused(_words(admin, error), error.code) from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        why = getattr(error, "reason", error)  # `URLError` wraps what happened
        raise ConfigError(f"cannot ask {admin.url}: {why}") from error


def _url(text: str) -> str:
    """Return the URL without its last slash.

    Raises:
        ConfigError: it is none that can be asked.
    """
    url = (text if "://" in text else f"http://{text}").rstrip("/")
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    if not usable or parts.query or parts.fragment or not url.isprintable() or " " in url:
        raise ConfigError(f"--admin: {text!r} is no http:// or https:// address")
    return url


def _token(admin: Admin) -> str:
    parts = urlsplit(_url(admin.url))
    if parts.scheme != "https" and not _is_this_machine(parts.hostname or ""):
        raise ConfigError(
            f"--token-file: {admin.url} is not https, so anybody could read the token"
        )
    try:
        token = Path(admin.token_file).read_text().strip()
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read --token-file: {error}") from error
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(f"{admin.token_file} holds no token")
    return token


def _is_this_machine(host: str) -> bool:
    if host == "localhost":
        return True
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False


def _context(admin: Admin) -> ssl.SSLContext:
    try:
        return client_context(
            admin.ca_file, admin.cert_file, admin.key_file, verify=not admin.insecure
        )
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read the certificates: {error}") from error


def _words(admin: Admin, error: urllib.error.HTTPError) -> str:
    """Say why the picker refused: its own words, or what its status means."""
    with contextlib.suppress(msgspec.DecodeError, AttributeError, KeyError, TypeError, OSError):
        return f"{admin.url}: {msgspec.json.decode(error.read(MOST_BYTES))['error']}"
    if error.code in (401, 403):
        what = "the token may not read it" if admin.token_file else "it wants a --token-file"
        return f"{admin.url} answered {error.code}: {what}"
    return f"{admin.url} answered {error.code}: is it a picker?"
