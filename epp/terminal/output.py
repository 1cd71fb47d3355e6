"""Standard output and error, where nobody may be reading any more, or never was.

A picker goes on serving without either. A tool that cannot write what it was asked for says so in
one line, if it can, and in its exit status.
"""

from __future__ import annotations

import contextlib
import os
import sys


def open_missing() -> None:
    """Give the standard streams that are closed a place where nothing is kept.

    Left closed, their numbers would go to the next files and sockets, and what is written to
    standard error would go there.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free: this one
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


def tell(text: str) -> None:
    """Print ``text`` for whoever reads standard output, if anybody does."""
    with contextlib.suppress(OSError, ValueError):
        print(text, flush=True)  # noqa: T201


def complain(text: str) -> None:
    """Print ``text`` to standard error, if anybody reads it."""
    with contextlib.suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)  # noqa: T201


def printable(text: str) -> str:
    """Return ``text`` as a terminal may show it: what clients wrote may be orders to it."""
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text)


def let_go() -> None:
    """Drop what could not be written, so that the interpreter does not try again at its end."""
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        try:
            stream.flush()
        except (OSError, ValueError):
            with contextlib.suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), number)
