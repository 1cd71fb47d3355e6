"""The plugins of the configuration in use that share what they learn.

To find them takes 4 us a plugin, so they are found once for each configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from epp.plugin import Sharer


class Sharers:
    """Remembers them until the configuration changes."""

    def __init__(self) -> None:
        self._plugins: Mapping[str, Any] = {}
        self._found: Mapping[str, Sharer] = {}

    def of(self, plugins: Mapping[str, Any]) -> Mapping[str, Sharer]:
        """Return those of ``plugins``, which are all of a configuration, by name."""
        if plugins is not self._plugins:
            found = {name: made for name, made in plugins.items() if isinstance(made, Sharer)}
            self._plugins, self._found = plugins, found
        return self._found
