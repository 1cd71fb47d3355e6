"""The admin port as the options ask for it: where it listens, who may read it, and its TLS.

With ``--metrics-endpoint-auth`` a picker in a cluster asks the cluster about each reader, and one
without a cluster listens on 127.0.0.1 only. Whether the process lives or is ready, anybody may
ask: a kubelet shows no token.

**Source:** answers of controller-runtime's ``WithAuthenticationAndAuthorization``.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from aiohttp import web

from epp.clock import Clock
from epp.errors import ConfigError
from epp.kube.access import Access
from epp.kube.errors import KubeError
from epp.kube.review import Reviewer
from epp.process.server_tls import server_context
from epp.serve.options import ServeOptions
from epp.serve.origin import access_of
from epp.telemetry.admin import AdminPages, AdminServer, Middleware
from epp.telemetry.metrics import Metrics

OPEN = frozenset({"/healthz", "/readyz"})  #: for everybody
MOST_TOKEN = 16_384  #: characters
LOCAL = "127.0.0.1"

log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def admin_of(
    options: ServeOptions, metrics: Metrics, *, pages: AdminPages, clock: Clock
) -> AdminServer:
    """Return the server of the admin port.

    Raises:
        ConfigError: its certificate or the clients' authority cannot be read.
    """
    access = cluster_of(options)
    local = access is None and options.metrics_endpoint_auth is True
    return AdminServer(
        LOCAL if local else options.host,
        options.metrics_port,
        metrics,
        pages,
        middlewares=() if access is None else (admitting(Reviewer(access, clock)),),
        tls=tls_of(options),
    )


def cluster_of(options: ServeOptions) -> Access | None:
    """Return the cluster to ask about readers; None if nobody is asked.

    Not told whether to, a picker asks if a cluster tells it its endpoints.
    """
    wanted = options.metrics_endpoint_auth
    if wanted is None:
        fixed = options.endpoints or options.endpoints_file
        told = options.pool_name or options.all_pools or options.endpoint_selector
        wanted = bool(told) and not fixed
    if not wanted:
        return None
    found = access_of(options)
    return None if isinstance(found, str) else found


def admitting(reviewer: Reviewer) -> Middleware:
    """Return what lets only those pass whom ``reviewer`` allows the path that they read."""

    @web.middleware
    async def admit(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path in OPEN:
            return await handler(request)
        token = bearer(request.headers.get("Authorization", ""))
        try:
            verdict = (
                await reviewer.review(token, request.method.lower(), request.path)
                if token
                else "unknown"
            )
        except KubeError as error:
            log.warning("who may read the metrics cannot be asked: %s", error)
            return web.Response(status=500, text="Authentication failed\n")
        if verdict == "allowed":
            return await handler(request)
        if verdict == "forbidden":
            return web.Response(status=403, text="Authorization denied\n")
        return web.Response(
            status=401, text="Unauthorized\n", headers={"WWW-Authenticate": "Bearer"}
        )

    return admit


def bearer(header: str) -> str:
    """Return the token of an ``Authorization`` header; "" if there is none worth asking about."""
    scheme, _, token = header.strip().partition(" ")
    token = token.strip()
    told = scheme.lower() == "bearer" and token.isascii() and len(token) <= MOST_TOKEN
    return token if told else ""


def tls_of(options: ServeOptions) -> ssl.SSLContext | None:
    """Return the TLS of the admin port; None for plain HTTP.

    Raises:
        ConfigError: a file cannot be read, or clients are to be verified without TLS.
    """
    if not options.metrics_cert_dir:
        if options.metrics_client_ca_file:
            raise ConfigError("--metrics-client-ca-file needs --metrics-cert-dir")
        return None
    where = options.metrics_client_ca_file
    verify = partial(_verify, where)
    try:
        verify(ssl.create_default_context(ssl.Purpose.CLIENT_AUTH))
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"--metrics-client-ca-file {where}: {error}") from error
    return server_context(Path(options.metrics_cert_dir), verify, port="metrics")


def _verify(authority: str, context: ssl.SSLContext) -> None:
    if authority:
        context.load_verify_locations(cafile=authority)
        context.verify_mode = ssl.CERT_REQUIRED
