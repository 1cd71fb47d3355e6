"""One page over HTTP: bounded in time and size, with keep-alive and TLS.

Redirects are not followed and proxies of the environment not used: an answer must come from the
endpoint itself. Compressed answers are neither asked for nor read. Certificates are
read again when their files change; if the new ones are broken, the old stay in use.
"""

from __future__ import annotations

import errno
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Annotated, Literal, Self

import aiohttp
import msgspec
from msgspec import Meta

from epp.errors import ConfigError
from epp.model import Endpoint, join_host_port
from epp.process.client_tls import client_context

MAX_PAGE_BYTES = 4 * 1024 * 1024
CERTIFICATE_CHECK_SECONDS = 1.0
KEEP_ALIVE_SECONDS = 30.0

Reason = Literal["refused", "connection", "timeout", "tls", "status", "too_large", "encoding"]

_NOBODY = frozenset({errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.EHOSTDOWN})


class Source(msgspec.Struct, frozen=True):
    """Where an endpoint's page is."""

    scheme: Literal["http", "https"] = "http"
    path: str = "/metrics"
    port: Annotated[int, Meta(ge=1, le=65_535)] | None = None  #: None: the endpoint's own
    skip_verify: bool = True  #: accept any certificate
    ca_cert_path: str = ""  #: PEM; "": the system's authorities
    client_cert_path: str = ""  #: PEM, for mutual TLS
    client_key_path: str = ""

    def url(self, endpoint: Endpoint) -> str:
        """The page's address."""
        where = join_host_port(endpoint.host, self.port or endpoint.port)
        return f"{self.scheme}://{where}{self.path}"

    def files(self) -> tuple[str, ...]:
        """The certificate files that are used."""
        every = (self.ca_cert_path, self.client_cert_path, self.client_key_path)
        return tuple(path for path in every if path)


class NoPage(Exception):
    """There is no page; ``reason`` says why, in one word."""

    def __init__(self, reason: Reason, detail: str, *, answered: bool = False) -> None:
        super().__init__(detail)
        self.reason = reason
        self.answered = answered  #: something spoke HTTP there


class Fetcher:
    """Fetches pages; an async context manager that owns the connections."""

    def __init__(self, source: Source, *, timeout: float) -> None:
        self._source = source
        self._timeout = aiohttp.ClientTimeout(total=timeout)
        self._session: aiohttp.ClientSession | None = None
        self._tls = _Certificates(source) if source.scheme == "https" else None

    async def __aenter__(self) -> Self:
        """Open; raises `errors.ConfigError` if a certificate file cannot be used."""
        if self._tls is not None:
            self._tls.load()
        connector = aiohttp.TCPConnector(
            limit=0,  # one scrape per endpoint at a time is the limit; a hung one delays no other
            keepalive_timeout=KEEP_ALIVE_SECONDS,
            ttl_dns_cache=10,
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            timeout=self._timeout,
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"Accept": "text/plain;version=0.0.4", "Accept-Encoding": "identity"},
            trust_env=False,
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def get(self, endpoint: Endpoint) -> bytes:
        """Return the endpoint's page.

        Raises:
            NoPage: there is none.
        """
        if self._session is None:
            raise RuntimeError("the fetcher is not open")
        url = self._source.url(endpoint)
        tls = True if self._tls is None else self._tls.current()
        try:
            async with self._session.get(url, ssl=tls, allow_redirects=False) as answer:
                return await _body(answer)
        except TimeoutError as error:
            raise NoPage("timeout", f"no page within {self._timeout.total} s") from error
        except (aiohttp.ClientSSLError, ssl.SSLError) as error:
            raise NoPage("tls", f"TLS: {error}") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise _no_connection(error) from error


async def _body(answer: aiohttp.ClientResponse) -> bytes:
    if answer.status != 200:
        raise NoPage("status", f"status {answer.status}", answered=True)
    encoding = answer.headers.get("Content-Encoding", "identity")
    if encoding.lower() != "identity":
        raise NoPage("encoding", f"content-encoding {encoding!r} was not asked for", answered=True)
    pieces = []
    size = 0
    async for piece in answer.content.iter_any():
        size += len(piece)
        if size > MAX_PAGE_BYTES:
            raise NoPage("too_large", f"more than {MAX_PAGE_BYTES} bytes", answered=True)
        pieces.append(piece)
    return b"".join(pieces)


def _no_connection(error: Exception) -> NoPage:
    number = error.errno if isinstance(error, OSError) else None
    if isinstance(error, aiohttp.ClientConnectorError):
        number = error.os_error.errno
    reason: Reason = "refused" if number in _NOBODY else "connection"
    answered = isinstance(error, aiohttp.ClientPayloadError)
    return NoPage(reason, f"{type(error).__name__}: {error}", answered=answered)


class _Certificates:
    """The TLS context of a `Source`, renewed when its files change."""

    def __init__(self, source: Source, now: Callable[[], float] = time.monotonic) -> None:
        self._source = source
        self._now = now
        self._context: ssl.SSLContext | None = None
        self._stamps: tuple[int, ...] = ()
        self._looked_at = 0.0

    def load(self) -> None:
        """Read the files; raises `errors.ConfigError` if they cannot be used."""
        try:
            self._stamps = self._stamp()
            self._context = self._build()
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            files = ", ".join(self._source.files())
            raise ConfigError(f"certificates for scraping ({files}): {error}") from error
        self._looked_at = self._now()

    def current(self) -> ssl.SSLContext | bool:
        """The context to use for the next request."""
        now = self._now()
        if now - self._looked_at >= CERTIFICATE_CHECK_SECONDS:
            self._looked_at = now
            self._renew()
        return self._context if self._context is not None else True

    def _renew(self) -> None:
        try:
            stamps = self._stamp()
            if stamps != self._stamps:
                self._context = self._build()
                self._stamps = stamps
        except (OSError, ValueError):
            return  # half-written files: the old certificates serve until the next look

    def _stamp(self) -> tuple[int, ...]:
        return tuple(Path(path).stat().st_mtime_ns for path in self._source.files())

    def _build(self) -> ssl.SSLContext:
        source = self._source
        return client_context(
            source.ca_cert_path,
            source.client_cert_path,
            source.client_key_path,
            verify=not source.skip_verify,
        )
