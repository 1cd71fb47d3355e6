"""Tracing, as the flag and the environment ask for it: OpenTelemetry is imported only then."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from epp.errors import ConfigError
from epp.telemetry.trace_settings import settings_of

if TYPE_CHECKING:
    from epp.telemetry.tracing import Tracing


def tracing_of(flag: bool | None, environment: Mapping[str, str]) -> Tracing | None:  # noqa: FBT001
    """Start to trace, if that is asked for (see `settings_of`).

    Raises:
        ConfigError: it is, and cannot be.
    """
    settings = settings_of(flag, environment)
    if settings is None:
        return None
    try:
        from epp.telemetry.tracing import start  # noqa: PLC0415 - only who traces pays for it
    except ImportError as error:  # a part of the package may be there for another's sake
        raise ConfigError(
            f"tracing needs the module {error.name or 'opentelemetry'!r}: pip install '.[tracing]' in the folder of "
            "epp's sources, or turn tracing off with --tracing=false"
        ) from error
    return start(settings)
