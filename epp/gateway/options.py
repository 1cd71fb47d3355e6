"""What an Envoy bootstrap is rendered from."""

from __future__ import annotations

from typing import Literal

import msgspec

Mode = Literal["lean", "stock", "direct"]
Routing = Literal["original-dst", "override-host"]


class GatewayOptions(msgspec.Struct, frozen=True):
    """Options of `epp gateway`. Durations in seconds."""

    mode: Mode = "lean"
    """lean: the picker sees requests only, and hears of answers by access log. stock: all bodies
    pass through it. direct: no picker, round robin over ``endpoints``."""
    routing: Routing = "original-dst"
    """original-dst: to any address the picker names. override-host: to one of ``endpoints``, with
    retries, and by least request while there is no picker."""
    endpoints: tuple[str, ...] = ()  #: ``host:port``; needed by override-host and direct
    pools: tuple[str, ...] = ()
    """A route ``/POOL/...`` and a cluster for each; the picker hears the cluster's name. None: all
    requests are for the picker's only pool."""
    listen_host: str = "127.0.0.1"
    listen_port: int = 8081
    admin_host: str = "127.0.0.1"
    admin_port: int = 19000
    picker_host: str = "127.0.0.1"
    picker_port: int = 9002
    picker_tls: bool = True
    fail_open: bool = False  #: without a picker requests go on; needs override-host
    message_timeout: float = 1000.0  #: for the picker's answers; full-duplex bodies have none
    num_retries: int = 3  #: on connect failures, with override-host
    log_flush_interval: float = 0.05  #: of the access log, in lean mode
    tell_served: bool = True
    """Tell the picker which endpoint served, in stock mode with override-host: from Envoy 1.38 on."""
    lean_usage: bool = False  #: read token usage from answers (filters Envoy calls unfinished)
    lean_ttft: bool = False  #: measure the time to the first chunk in Lua
    mirror: str = ""  #: ``host:port`` of `epp traffic mirror`, which gets a copy of each request
