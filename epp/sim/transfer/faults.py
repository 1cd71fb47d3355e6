"""Ways in which a prefill fails, on purpose: routers and sidecars are tested with them; pure."""

from __future__ import annotations

import random
from collections.abc import Sequence

FAULTS = {
    "error": "answers 500",
    "hang": "never answers",
    "disconnect": "closes the connection without an answer",
    "malformed": "answers half of its JSON",
    "missing": "answers without kv_transfer_params",
    "expired": "answers, and gives the blocks back at once",
    "port-dead": "answers, and nothing listens where the KV is",
}


class Faults:
    """Draws what goes wrong with a prefill; the same seed draws the same."""

    def __init__(self, kinds: Sequence[str], rate: float, seed: int) -> None:
        self.kinds = tuple(kinds)  #: of `FAULTS`
        self.rate = rate  #: fraction of prefills
        self._random = random.Random(seed)

    def draw(self) -> str:
        """Return a kind, or "" for a prefill that goes well."""
        if not self.kinds or self._random.random() >= self.rate:
            return ""
        return self._random.choice(self.kinds)
