"""What the chart's values are, read out of ``values.yaml`` and its comments."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

import msgspec
import yaml

from tests.support.chart import CHART

_LINE = re.compile(r"^( *)([\w-]+):(.*)$")
WHOLE = frozenset(
    {
        "picker.resources", "picker.podSecurityContext", "picker.securityContext",
        "envoy.resources", "monitoring.dashboards.labels",
    }
)  # fmt: skip
"""Maps whose keys are Kubernetes' business."""


class Value(msgspec.Struct, frozen=True):
    """One value of the chart."""

    path: str  #: dotted
    default: Any
    says: str  #: its comment; "" without one

    def text(self) -> str:
        """The default in one line."""
        return json.dumps(self.default)


class Translation(msgspec.Struct, frozen=True, rename={"came": "from"}, forbid_unknown_fields=True):
    """One line of ``translations.yaml``."""

    came: list[str]
    to: str = ""
    read: dict[str, str] = {}
    ignored: str = ""


@cache
def defaults() -> dict[str, Any]:
    """Return the chart's defaults."""
    return dict(yaml.safe_load((CHART / "values.yaml").read_text()))


@cache
def translations() -> list[Translation]:
    """Return where the values of other charts go."""
    text = (CHART / "files/translations.yaml").read_bytes()
    return msgspec.yaml.decode(text, type=list[Translation])


def at(path: str, values: dict[str, Any]) -> Any:
    """Return the value at a dotted path.

    Raises:
        KeyError: there is none.
    """
    found: Any = values
    for key in path.split("."):
        found = found[key]
    return found


def values() -> list[Value]:
    """Return every value, in the file's order; maps that are values of their own, whole."""
    found, stack, says = [], [], ""
    for line in (CHART / "values.yaml").read_text().splitlines():
        if line.lstrip().startswith("#"):
            says = f"{says} {line.lstrip(' #')}".strip()
            continue
        match = _LINE.match(line)
        if match is None:
            says = ""
            continue
        stack = [*stack[: len(match[1]) // 2], match[2]]
        path, comment, says = ".".join(stack), says, ""
        if _inside(path):
            continue
        default = at(path, defaults())
        if not isinstance(default, dict) or not default or path in WHOLE or comment:
            found.append(Value(path, default, comment))
    return found


def _inside(path: str) -> bool:
    return any(path.startswith(f"{whole}.") for whole in WHOLE)
