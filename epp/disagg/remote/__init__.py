"""Prefills that the picker runs itself, without a sidecar: ``prefill-client``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from epp.errors import ConfigError
from epp.plugin import Prefiller


def only_prefiller(plugins: Sequence[Any]) -> Prefiller | None:
    """Return the plugin that runs prefills; None if none does.

    Raises:
        ConfigError: there are several.
    """
    found = [each for each in plugins if isinstance(each, Prefiller)]
    if len(found) > 1:
        raise ConfigError(f"one plugin may run prefills, not {len(found)} - at `$.plugins`")
    return found[0] if found else None
