"""Where tables and progress are printed."""

from __future__ import annotations

import rich.console


class Console(rich.console.Console):
    """A console that leaves it to the command line what a reader's going means."""

    def on_broken_pipe(self) -> None:
        """Tell of it as a file does: the library's own would end the process with an error."""
        raise BrokenPipeError
