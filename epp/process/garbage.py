"""Python's garbage collector, for a process that serves.

Few objects of ours form cycles, and a full collection with a large index stops the loop for
milliseconds: what was there at the start is left alone, and collections are rare.
"""

from __future__ import annotations

import gc

THRESHOLDS = (20_000, 20, 20)  #: allocations, then collections of the younger kind, between two


def settle() -> None:
    """Collect once; look from now on at what is new, and seldom."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
