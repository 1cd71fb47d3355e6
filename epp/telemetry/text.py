"""Text of clients made fit for pages and logs.

Bytes of a header that are not UTF-8 are kept as lone surrogates, so that they go on as they came
(see `extproc.wire`). No encoder takes those: one such header, kept as a label or an id, would
break every later page that shows it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec


def printable(text: str) -> str:
    r"""Return ``text`` with each lone surrogate spelled out, like ``\udcff``."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def encode_json(value: Any) -> bytes:
    """Return ``value`` as JSON; a value that is no JSON becomes its ``str``."""
    try:
        return msgspec.json.encode(value, enc_hook=str)
    except UnicodeEncodeError:
        return msgspec.json.encode(_spelled(msgspec.to_builtins(value, enc_hook=str)))


def _spelled(value: Any) -> Any:
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, Mapping):
        return {_spelled(key): _spelled(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_spelled(inner) for inner in value]
    return value
