"""How near two endpoints are: same host, rack, zone or region.

**Source:** the default labels of llm-d's ``topology-extractor``. A label that is missing never
matches, not even another missing one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from epp.model import Endpoint

Level = Literal["host", "rack", "zone", "region"]

#: Nearest first; who shares a level shares all that follow.
LABELS: dict[Level, str] = {
    "host": "kubernetes.io/hostname",
    "rack": "topology.kubernetes.io/rack",
    "zone": "topology.kubernetes.io/zone",
    "region": "topology.kubernetes.io/region",
}


def nearness(peer: Endpoint, endpoints: Sequence[Endpoint]) -> list[Level | None]:
    """The nearest level each endpoint shares with ``peer``; None if they share none."""
    levels: list[Level | None] = [None] * len(endpoints)
    for level, key in reversed(LABELS.items()):  # nearer levels overwrite wider ones
        if value := peer.labels.get(key):
            for i, endpoint in enumerate(endpoints):
                if endpoint.labels.get(key) == value:
                    levels[i] = level
    return levels
