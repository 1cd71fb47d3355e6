"""Command-line flags made from the fields of an options struct."""

from __future__ import annotations

import argparse
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

Options = TypeVar("Options", bound=msgspec.Struct)


def add_options(
    parser: argparse.ArgumentParser, options: type[msgspec.Struct], helps: Mapping[str, str]
) -> None:
    """Add one flag per field of ``options``: ``max_num_seqs`` is ``--max-num-seqs``.

    Tuples are comma-separated; booleans take ``=true`` or ``=false``. ``helps`` has a line for
    each field, by its name; a field without one is not offered.
    """
    hints = typing.get_type_hints(options)
    for field in msgspec.structs.fields(options):
        if field.name not in helps:
            continue
        flag = "--" + field.name.replace("_", "-")
        default = field.default
        arguments: dict[str, Any] = {"help": helps[field.name], "default": default}
        arguments.update(_reader(hints[field.name]))
        if field.name.endswith("port"):
            arguments["type"] = port
        if isinstance(default, tuple):
            arguments["metavar"] = "A,B,..."
        parser.add_argument(flag, **arguments)


def read_options(parsed: argparse.Namespace, options: type[Options]) -> Options:
    """Build ``options`` from the flags that `add_options` added."""
    known = vars(parsed)
    names = [name for name in options.__struct_fields__ if name in known]
    return options(**{name: known[name] for name in names})


def truth(text: str) -> bool:
    """Read a Go-style boolean."""
    if text.lower() in ("true", "t", "1"):
        return True
    if text.lower() in ("false", "f", "0"):
        return False
    raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")


def port(text: str) -> int:
    """Read a port's number; 0 is one."""
    if not text.isdecimal() or len(text) > len("65535") or int(text) > 65_535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port (0 to 65535)")
    return int(text)


def count(text: str) -> int:
    """Read a whole number below a million."""
    if not text.isdecimal() or len(text) > len("999999"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to 999999")
    return int(text)


def positive(text: str) -> int:
    """Read a whole number from 1 to below a million."""
    if (number := count(text)) == 0:
        raise argparse.ArgumentTypeError("'0' is not a number from 1 to 999999")
    return number


def _reader(hint: Any) -> dict[str, Any]:
    if hint is bool:
        return {"type": truth, "nargs": "?", "const": True}
    if typing.get_origin(hint) is tuple:
        return {"type": words}
    if typing.get_origin(hint) is typing.Literal:
        return {"choices": typing.get_args(hint)}
    if isinstance(hint, types.UnionType):  # X | None
        (hint,) = (part for part in typing.get_args(hint) if part is not type(None))
    return {"type": hint}


def words(text: str) -> tuple[str, ...]:
    """Read words with commas between them."""
    return tuple(word.strip() for word in text.split(",") if word.strip())
