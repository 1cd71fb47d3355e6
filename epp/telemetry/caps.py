"""How many label sets requests may make.

Model names and fairness ids come from clients: without a bound anyone could fill our memory, and
the monitoring system's. A value once known stays for the life of the process, so that a
gauge that went up under a name comes down under the same.

**Source:** the limits of llm-d-router; field problem llm-d/llm-d-router#1625.
"""

from __future__ import annotations

OTHER = "other"
MOST_VALUES = 1000
LONGEST = 256  #: characters


class Cap:
    """The first ``most`` distinct values; later ones are `OTHER`."""

    def __init__(self, most: int = MOST_VALUES) -> None:
        self._most = most
        self._known: set[str] = set()

    def __call__(self, value: str) -> str:
        if value in self._known or not value:
            return value
        if len(self._known) >= self._most or len(value) > LONGEST:
            return OTHER
        self._known.add(value)
        return value
