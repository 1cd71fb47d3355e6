"""How the command line speaks: its help texts, and one line for what it does not understand."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterable
from typing import Any, NoReturn

METAVARS = {"int": "N", "count": "N", "positive": "N", "float": "X", "above_zero": "X", "port": "PORT", "truth": "BOOL",
            "_seconds": "DURATION", "_long": "DURATION", "_size": "SIZE", "_some": "SIZE"}  # fmt: skip
"""What stands for a flag's value, by the function that reads it."""
CLOSE = 0.75  #: 0 to 1: how much a flag must be like another one to be taken for it


class Help(argparse.HelpFormatter):
    """Says each default as one would type it, and none where nothing is set."""

    def _get_default_metavar_for_optional(self, action: argparse.Action) -> str:
        return METAVARS.get(
            getattr(action.type, "__name__", ""), action.dest.split("_")[-1].upper()
        )

    def _get_help_string(self, action: argparse.Action) -> str:
        text, default = action.help or "", said(action)
        if not action.option_strings or not default or "default" in text:
            return text
        return f"{text} (default: {default})" if text else f"default: {default}"


class Parser(argparse.ArgumentParser):
    """Takes whole flags only; says what is wrong in one line, with the nearest flag there is."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"allow_abbrev": False, "formatter_class": Help, **settings})

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse; a verb's parser refuses flags it does not know itself, knowing its own."""
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unknown argument {unknown[0]}{nearest(unknown[0], self._flags())}")
        return parsed, unknown

    def _flags(self) -> Iterable[str]:
        return (
            flag
            for action in self._actions
            if action.help != argparse.SUPPRESS
            for flag in action.option_strings
        )


def nearest(unknown: str, flags: Iterable[str]) -> str:
    """Ask whether the flag most like ``unknown`` was meant; "" if none is like it."""
    like = difflib.get_close_matches(unknown.partition("=")[0], list(flags), 1, CLOSE)
    return f"; did you mean {like[0]}?" if like else ""


def said(action: argparse.Action) -> str:
    """Write the default of ``action`` as one would type it; "" if nothing is set."""
    default: Any = action.default
    if default is None or default is False or default in ("", argparse.SUPPRESS):
        return ""
    if default is True:
        return "true"
    if isinstance(default, tuple | list):
        return ",".join(default)
    return _number(default, METAVARS.get(getattr(action.type, "__name__", ""), ""))


def _number(value: Any, kind: str) -> str:
    if kind == "DURATION":
        return f"{value:g}s" if value >= 1 or not value else f"{value * 1000:g}ms"
    if kind == "SIZE" and value and value % 2**20 == 0:
        return f"{value // 2**20}Mi"
    return f"{value:g}" if isinstance(value, float) else str(value)
