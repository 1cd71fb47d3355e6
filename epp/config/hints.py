"""The nearest known field, for messages about unknown ones."""

from __future__ import annotations

import difflib
import re
import typing
from collections.abc import Sequence
from typing import Any

import msgspec

_AT = re.compile(r" - at `(.*)`$")
_PATTERN = re.compile(r"`str` matching regex '(.*)'")
_WORDS = {"ns|us": "a duration such as `30s`", "KMGTPE": "a quantity such as `1Gi`"}
"""What of a pattern tells which one it is, and what to say instead."""
_UNKNOWN = re.compile(r"unknown field `([^`]*)`")


def with_hint(said: str, root: Any, *, where: str = "$") -> str:
    """Return msgspec's message with its whole path and, for an unknown field, the nearest known.

    Args:
        said: what msgspec said of a value of type ``root``.
        root: a struct.
        where: the place of that value in the file.
    """
    at, unknown = _AT.search(said), _UNKNOWN.search(said)
    inner = at[1].removeprefix("$") if at else ""
    hint = ""
    if unknown is not None:
        near = difflib.get_close_matches(unknown[1], _fields_at(inner, root), 1)
        hint = f", did you mean `{near[0]}`?" if near else ""
    return f"{_PATTERN.sub(_in_words, _AT.sub('', said))}{hint} - at `{where}{inner}`"


def _in_words(pattern: re.Match[str]) -> str:
    return next((words for part, words in _WORDS.items() if part in pattern[1]), pattern[0])


def _fields_at(path: str, root: Any) -> Sequence[str]:
    """The field names that are known at a path such as ``.plugins[0]`` below ``root``."""
    here: Any = _struct_in(root)
    for step in re.findall(r"\.(\w+)", path):  # lists are looked into by `_struct_in`
        if here is None:
            return ()
        known = {field.encode_name: field.type for field in msgspec.structs.fields(here)}
        here = _struct_in(known.get(step))
    return () if here is None else typing.cast("Sequence[str]", here.__struct_encode_fields__)


def _struct_in(hint: Any) -> Any:
    """The struct inside ``tuple[X, ...]`` or ``X | None``; None if there is none."""
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return hint
    found = (_struct_in(part) for part in typing.get_args(hint))
    return next((each for each in found if each is not None), None)
