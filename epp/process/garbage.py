"""Python's garbage collector, for a process that serves, or simulates one.

Few objects of ours form cycles, and a full collection with a large index stops the loop for
milliseconds: what was there at the start is left alone, and collections are rare.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

THRESHOLDS = (20_000, 20, 20)  #: allocations, then collections of the younger kind, between two


def settle() -> None:
    """Collect once; look from now on at what is new, and seldom."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)


@contextlib.contextmanager
def seldom() -> Iterator[None]:
    """Collect as seldom as after `settle`, for as long as this lasts."""
    before = gc.get_threshold()
    gc.set_threshold(*THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
