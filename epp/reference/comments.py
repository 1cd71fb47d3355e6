"""What a struct's fields mean, read from the source: ``#:`` comments and strings after a field."""

from __future__ import annotations

import ast
import functools
import inspect
import re
import textwrap
from collections.abc import Sequence
from typing import Any

import msgspec

_COMMENT = re.compile(r"#:\s*(.*\S)")


def field_comments(struct: type) -> dict[str, str]:
    """Return what is said of each field of ``struct``, its bases' included; by field name."""
    found: dict[str, str] = {}
    for each in reversed(struct.__mro__):
        if issubclass(each, msgspec.Struct) and each is not msgspec.Struct:
            found.update(_own_comments(each))
    return found


def paragraphs(documented: Any) -> list[str]:
    """Return a docstring's paragraphs, each on one line, as Markdown."""
    text = inspect.cleandoc(documented.__doc__ or "")
    return [markdown(" ".join(part.split())) for part in re.split(r"\n\s*\n", text) if part]


def markdown(text: str) -> str:
    """Turn a docstring's ``code`` into Markdown's `code`."""
    return text.replace("``", "`")


@functools.cache
def _own_comments(struct: type) -> dict[str, str]:
    source = textwrap.dedent(inspect.getsource(struct))
    lines = source.splitlines()
    (class_,) = ast.parse(source).body
    assert isinstance(class_, ast.ClassDef)  # noqa: S101 - what getsource returns for a class
    said: dict[str, str] = {}
    for node, after in zip(class_.body, [*class_.body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            parts = [*_inline(lines[node.lineno - 1 : node.end_lineno]), *_string(after)]
            said[node.target.id] = " ".join(parts)
    return said


def _inline(lines: Sequence[str]) -> list[str]:
    return [match[1] for line in lines if (match := _COMMENT.search(line))]


def _string(node: ast.stmt | None) -> list[str]:
    """The text of a string that stands alone after a field."""
    if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Constant):
        return []
    return [" ".join(str(node.value.value).split())]
