"""The section of ``docs/compatibility.md`` about the configuration's fields and feature gates."""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from epp.config.defaults import ALWAYS_WARM, GATES, IGNORED, NO_FLOW_CONTROL, WARM_GATE
from epp.config.dialects import OLD_GATES
from epp.config.schema import Config
from epp.reference.plugins import table

FLOW = "flowControl"
WORKING_FLOW = frozenset({"flowControl.saturationDetector.pluginRef"})
"""What of flow control counts without it: whether sheddable requests are dropped."""
NOTES: Mapping[str, str] = {
    "flowControl.saturationDetector.pluginRef": "decides whether sheddable requests are dropped",
    "dataLayer.discovery.pluginRef": "`file-discovery`: no cluster is asked then",
    "plugins[].parameters": "checked against the type's own, unknown ones refused",
    "schedulingProfiles[].plugins[].weight": "of scorers; 1.0 if not given, 0 or more",
    "apiVersion": "`inference.networking.x-k8s.io/v1alpha1` with a warning",
}
OLD_SECTIONS: Mapping[str, str] = {
    "data": "read as `dataLayer`",
    "parser": "read as the only entry of `requestHandler.parsers`",
    "saturationDetector": "read as `flowControl.saturationDetector`; with settings of its own, as "
    "the parameters of `utilization-detector`",
}

Row = tuple[str, str, str]


def section() -> str:
    """Return the section's text."""
    return "\n".join(
        [
            "## Configuration",
            "",
            "Every field of `EndpointPickerConfig` is checked; what is ignored must be right, too.",
            "Without the gate `flowControl` the Go router ignores that section as we do.",
            "",
            table(("field", "here", "note"), [*_gates(), *fields(), *_older()]),
            "",
        ]
    )


def fields() -> list[Row]:
    """What becomes of each field of today's configuration."""
    return [_field(path) for path in _paths(Config, "")]


def _field(path: str) -> Row:
    ignored = next((why for field, why in IGNORED.items() if path.startswith(field)), None)
    if ignored is not None:
        return f"`{path}`", "accepted, ignored with a warning", ignored
    if path.startswith(f"{FLOW}.") and path not in WORKING_FLOW:
        return f"`{path}`", "accepted, ignored", "flow control is not supported yet"
    return f"`{path}`", "works", NOTES.get(path, "")


def _gates() -> list[Row]:
    said = {
        FLOW: ("accepted, ignored with a warning", NO_FLOW_CONTROL.partition(": ")[2]),
        WARM_GATE: (
            "accepted, `false` ignored with a warning",
            ALWAYS_WARM.partition(": ")[2],
        ),
    }
    older = [
        (f"gate `{gate}` (older)", "left out with a warning", why)
        for gate, why in OLD_GATES.items()
    ]
    return [*((f"gate `{gate}`", *said[gate]) for gate in sorted(GATES)), *older]


def _older() -> list[Row]:
    return [(f"`{name}` (older)", "translated", note) for name, note in OLD_SECTIONS.items()]


def _paths(struct: Any, prefix: str) -> Iterator[str]:
    hints = typing.get_type_hints(struct)
    for field in msgspec.structs.fields(struct):
        path = f"{prefix}{field.encode_name}"
        inner, many = _inner(hints[field.name])
        if inner is None:
            yield f"{path}[]" if many else path
        else:
            yield from _paths(inner, f"{path}[]." if many else f"{path}.")


def _inner(hint: Any) -> tuple[Any, bool]:
    """The struct within a field's type, None if there is none; and whether it is a list."""
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return hint, False
    many = typing.get_origin(hint) is tuple
    for part in typing.get_args(hint):
        if part is type(None) or part is Ellipsis:
            continue
        inner, inner_many = _inner(part)
        if inner is not None or many:
            return inner, many or inner_many
    return None, many
