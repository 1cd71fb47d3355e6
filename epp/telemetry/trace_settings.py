"""Whether and where traces go: the flag and OpenTelemetry's environment variables, as one record.

Nothing is traced unless somebody asks: ``--tracing``, or a variable that names an exporter or its
endpoint. OpenTelemetry is imported only then. Without ``OTEL_TRACES_SAMPLER`` one request in ten
that comes without a trace is recorded, as in the Go router.

**Source:** OpenTelemetry specification, environment variables; defaults of llm-d-router.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from epp.errors import ConfigError

SERVICE_NAME = "llm-d-epp"
RATIO = 0.1  #: of requests that come without a trace
HTTP_PORT = 4318  #: of OTLP over HTTP

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")


class TraceSettings(msgspec.Struct, frozen=True):
    """How to trace."""

    exporter: Literal["otlp", "console"]
    protocol: Literal["grpc", "http/protobuf"] = "grpc"
    service_name: str = ""  #: "" leaves it to the environment
    ratio: float | None = None  #: None leaves the sampler to the environment


def settings_of(flag: bool | None, environment: Mapping[str, str]) -> TraceSettings | None:  # noqa: FBT001
    """Return how to trace; None if nothing is to be traced.

    Args:
        flag: ``--tracing``; None if it was not given.
        environment: the process's environment variables.

    Raises:
        ConfigError: a variable has a value that means nothing.
    """
    exporter = environment.get("OTEL_TRACES_EXPORTER", "").strip().lower()
    endpoint = _first(environment, _ENDPOINTS)
    wanted = bool(exporter or endpoint) if flag is None else flag
    disabled = environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    if not wanted or disabled or exporter == "none":
        return None
    if exporter not in ("", "otlp", "console"):
        raise ConfigError(f"OTEL_TRACES_EXPORTER is {exporter!r}, not otlp, console or none")
    if exporter == "console" or not (exporter or endpoint):
        chosen: Literal["otlp", "console"] = "console"
    else:
        chosen = "otlp"
    named = environment.get("OTEL_SERVICE_NAME") or "service.name=" in environment.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    )
    return TraceSettings(
        exporter=chosen,
        protocol=_protocol(environment, endpoint),
        service_name="" if named else SERVICE_NAME,
        ratio=None if environment.get("OTEL_TRACES_SAMPLER") else _ratio(environment),
    )


def _first(environment: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((value for name in names if (value := environment.get(name, "").strip())), "")


def _protocol(environment: Mapping[str, str], endpoint: str) -> Literal["grpc", "http/protobuf"]:
    """The protocol that is told, else the one whose port the endpoint has, else gRPC."""
    told = _first(environment, _PROTOCOLS)
    if told == "grpc":
        return "grpc"
    if told == "http/protobuf":
        return "http/protobuf"
    if told:
        raise ConfigError(f"OTEL_EXPORTER_OTLP_PROTOCOL is {told!r}, not grpc or http/protobuf")
    try:
        port = urlsplit(endpoint).port
    except ValueError as error:
        raise ConfigError(f"the OTLP endpoint {endpoint!r} is no URL: {error}") from error
    return "http/protobuf" if port == HTTP_PORT else "grpc"


def _ratio(environment: Mapping[str, str]) -> float:
    told = environment.get("OTEL_TRACES_SAMPLER_ARG", "").strip()
    try:
        ratio = float(told) if told else RATIO
    except ValueError:
        ratio = -1.0
    if not 0.0 <= ratio <= 1.0:
        raise ConfigError(f"OTEL_TRACES_SAMPLER_ARG is {told!r}, not a number from 0 to 1")
    return ratio
