"""``python -m epp.reference docs [--check]``."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from epp.reference import compatibility, plugins, schema

ROOT = Path(__file__).resolve().parents[2]
PAGES: Mapping[str, Callable[[], str]] = {
    "docs/plugins.md": plugins.page,
    "docs/compatibility.md": compatibility.page,
    "docs/config.schema.json": schema.page,
}
DIFF_LINES = 20


def main(argv: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Write the pages below ``root``, or check them; return 1 if one is stale."""
    parser = argparse.ArgumentParser(prog="python -m epp.reference")
    parser.add_argument("what", choices=("docs",))
    parser.add_argument("--check", action="store_true", help="say what is stale, write nothing")
    check = parser.parse_args(argv).check
    pages = {name: page() for name, page in PAGES.items()}
    stale = [name for name, text in pages.items() if not _same(root / name, text)]
    for name in stale:
        if check:
            print(_difference(root / name, pages[name]), file=sys.stderr)  # noqa: T201
        else:
            (root / name).write_text(pages[name], encoding="utf-8")
            print(f"wrote {name}")  # noqa: T201
    return 1 if check and stale else 0


def _same(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8") == text


def _difference(path: Path, text: str) -> str:
    there = path.read_text(encoding="utf-8") if path.is_file() else ""
    lines = list(
        difflib.unified_diff(
            there.splitlines(), text.splitlines(), str(path), "from the code", lineterm="", n=0
        )
    )
    more = [f"... and {len(lines) - DIFF_LINES} lines more"] if len(lines) > DIFF_LINES else []
    stale = f"{path} is stale: run `make docs`"
    return "\n".join([stale, *lines[:DIFF_LINES], *more])


if __name__ == "__main__":
    sys.exit(main())
