"""The flags of ``epp gateway``."""

from __future__ import annotations

import argparse

from epp.errors import ConfigError
from epp.gateway.options import GatewayOptions
from epp.gateway.render import render
from epp.terminal.arguments import add_options, read_options

HELPS = {
    "mode": "lean: the picker sees requests only; stock: all bodies; direct: no picker",
    "routing": "original-dst: any address; override-host: one of --endpoints, with retries",
    "endpoints": "HOST:PORT of the engines, for override-host and direct",
    "pools": "a route /POOL/... for each, and the picker is told; for a picker of many pools",
    "listen_host": "address for clients",
    "listen_port": "port for clients",
    "admin_host": "address of Envoy's admin page",
    "admin_port": "port of Envoy's admin page",
    "picker_host": "where the picker is",
    "picker_port": "its ext_proc port",
    "picker_tls": "speak TLS to the picker",
    "fail_open": "without a picker requests go on (override-host only)",
    "message_timeout": "seconds to wait for the picker, where Envoy has a limit at all",
    "num_retries": "on connection failures (override-host only)",
    "log_flush_interval": "seconds an access-log entry may wait (lean only)",
    "tell_served": "tell the picker who served (stock and override-host; false before Envoy 1.38)",
    "lean_usage": "read token usage from answers, with filters Envoy calls unfinished (from 1.38)",
    "lean_ttft": "measure the time to the first chunk, in Lua",
    "mirror": "HOST:PORT of an epp traffic mirror, which gets a copy of each request",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    add_options(parser, GatewayOptions, HELPS)


def run(parsed: argparse.Namespace) -> int:
    """Print the bootstrap.

    Raises:
        ConfigError: flags contradict each other, or one would do nothing.
    """
    options = read_options(parsed, GatewayOptions)
    if options.endpoints and options.mode != "direct" and options.routing == "original-dst":
        raise ConfigError(
            "--endpoints are for --mode=direct and --routing=override-host: with original-dst the "
            "picker alone knows them"
        )
    print(render(options), end="")  # noqa: T201
    return 0
