"""Flags of the Go pickers that are no option of ours, and what becomes of them.

A deployment made for a Go picker must start with this one, so none of them is an error. Those
that ask for what is so anyhow are silent; each other one is answered with one warning.

**Source:** flags of llm-d-router's ``epp`` and of GAIE 1.5, removed ones included.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

import msgspec


class Ignored(msgspec.Struct, frozen=True):
    """A flag that changes nothing."""

    instead: str  #: how things are, or what to use
    fits: tuple[str, ...] = ()  #: values that ask for just that


_YES = ("true", "t", "1")
_NO = ("false", "f", "0")

IGNORED: Mapping[str, Ignored] = {
    "enable-pprof": Ignored("there is no profiler on the metrics port", _NO),
    "enable-cert-reload": Ignored("certificates are always reloaded when their files change", _YES),
    "refresh-prometheus-metrics-interval": Ignored("pool metrics are computed when they are read"),
    "zap-devel": Ignored("use --log-format", _NO),
    "zap-stacktrace-level": Ignored("tracebacks are logged for bugs only"),
    "zap-time-encoding": Ignored("times are RFC 3339", ("rfc3339", "rfc3339nano", "iso8601")),
}

MOVED: Mapping[str, str] = {
    "total-queued-requests-metric": "queuedRequestsSpec of core-metrics-extractor",
    "total-running-requests-metric": "runningRequestsSpec of core-metrics-extractor",
    "kv-cache-usage-percentage-metric": "kvUsageSpec of core-metrics-extractor",
    "lora-info-metric": "loraSpec of core-metrics-extractor",
    "cache-info-metric": "cacheInfoSpec of core-metrics-extractor",
    "model-server-metrics-scheme": "scheme of metrics-data-source",
    "model-server-metrics-path": "path of metrics-data-source",
    "model-server-metrics-port": "port of metrics-data-source",
    "model-server-metrics-https-insecure-skip-verify": "insecureSkipVerify of metrics-data-source",
}
"""Settings that the configuration has taken over; the flags still count, with a warning."""


def add_ignored(parser: Any) -> None:
    """Accept the flags of `IGNORED`, with or without a value."""
    for flag in IGNORED:
        parser.add_argument(f"--{flag}", nargs="?", const="true", help=argparse.SUPPRESS)


def add_moved(parser: Any, types: Mapping[str, Any]) -> None:
    """Accept the flags of `MOVED`; ``types`` reads those that are no text."""
    for flag in MOVED:
        parser.add_argument(f"--{flag}", help=argparse.SUPPRESS, **types.get(flag, {}))


def warnings(known: Mapping[str, Any]) -> list[str]:
    """Return a warning for each of these flags in ``known`` that deserves one."""
    return [
        *(
            f"--{flag} is accepted and ignored: {about.instead}"
            for flag, about in IGNORED.items()
            if (value := known[_field(flag)]) is not None and value.lower() not in about.fits
        ),
        *(
            f"--{flag} will go: use {instead} in the configuration"
            for flag, instead in MOVED.items()
            if known[_field(flag)] is not None
        ),
    ]


def _field(flag: str) -> str:
    return flag.replace("-", "_")
