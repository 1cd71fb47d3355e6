"""A plugin's ``Params`` as rows: name in the file, type, default, meaning.

Blocks inside blocks are rows too: ``conditions[].maxValue``, ``algorithm.threshold.value``.
"""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from epp.reference.comments import field_comments, markdown, paragraphs

REQUIRED = "required"
ABSENT = "–"

_WORDS: Mapping[Any, str] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    Any: "anything",
    type(None): "",
    UnsetType: "",
}
_BOUNDS = {"gt": "> {}", "ge": "≥ {}", "lt": "< {}", "le": "≤ {}", "pattern": "like `{}`"}


class Parameter(msgspec.Struct, frozen=True):
    """One row."""

    name: str
    type: str
    default: str
    meaning: str


def parameters_of(params: Any, prefix: str = "") -> list[Parameter]:
    """Return the rows of a ``Params`` type; a mapping has one for any name."""
    if not is_struct(params):
        return [Parameter("any name", type_text(params)[len("map of ") :], ABSENT, "")]
    comments = field_comments(params)
    rows: list[Parameter] = []
    for field in msgspec.structs.fields(params):
        name = prefix + field.encode_name
        meaning = markdown(comments.get(field.name, "")) or _of_block(field.type)
        rows.append(Parameter(name, type_text(field.type), _default_text(field), meaning))
        for inner, suffix in _blocks(field.type):
            rows += parameters_of(inner, f"{name}{suffix}.")
    return rows


def is_struct(hint: Any) -> bool:
    """Say whether a type is a record."""
    return isinstance(hint, type) and issubclass(hint, msgspec.Struct)


def structs_in(hint: Any) -> list[type]:
    """Return the records that a type mentions, those inside them included, outer first."""
    if is_struct(hint):
        inner = [each for field in msgspec.structs.fields(hint) for each in structs_in(field.type)]
        return list(dict.fromkeys([hint, *inner]))
    return list(dict.fromkeys(each for part in typing.get_args(hint) for each in structs_in(part)))


def type_text(hint: Any) -> str:
    """Return a type in words: "list of string", "number > 0"."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return " ".join([type_text(inner[0]), *_bounds(inner[1:])]).strip()
    if origin is typing.Literal:
        return " or ".join(f"`{each}`" for each in inner)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(filter(None, map(type_text, inner)))
    if origin is tuple:
        return f"list of {type_text(inner[0])}"
    if origin is not None and issubclass(origin, Mapping):
        return f"map of {type_text(inner[1])}"
    return _WORDS.get(hint, "object")


def _bounds(metas: tuple[Any, ...]) -> list[str]:
    said = [
        template.format(value_text(bound) if not isinstance(bound, str) else bound)
        for meta in metas
        if isinstance(meta, Meta)
        for name, template in _BOUNDS.items()
        if (bound := getattr(meta, name)) is not None
    ]
    return [", ".join(said)] if said else []


def _blocks(hint: Any, suffix: str = "") -> list[tuple[type, str]]:
    """The records right inside a type, and how their fields are reached."""
    if is_struct(hint):
        return [(hint, suffix)]
    deeper = "[]" if typing.get_origin(hint) is tuple else ""
    parts = typing.get_args(hint)
    return [found for part in parts for found in _blocks(part, suffix + deeper)]


def _default_text(field: Any) -> str:
    default = field.default
    if default is msgspec.NODEFAULT and field.default_factory is not msgspec.NODEFAULT:
        default = field.default_factory()
    if default is msgspec.NODEFAULT:
        return REQUIRED
    if default is None or default is UNSET or isinstance(default, msgspec.Struct):
        return ABSENT
    return f"`{value_text(msgspec.to_builtins(default))}`"


def _of_block(hint: Any) -> str:
    """What the record inside a type says of itself."""
    said = [paragraphs(block)[:1] for block, _ in _blocks(hint) if block.__doc__]
    return " ".join(said[0]) if len(said) == 1 else ""


def value_text(value: Any) -> str:
    """Return a value as JSON, without the ``.0`` of whole numbers."""
    whole = isinstance(value, float) and value.is_integer()
    return json.dumps(int(value) if whole else value, ensure_ascii=False)
