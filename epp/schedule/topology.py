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
    known = [
        (level, key, peer.labels[key]) for level, key in LABELS.items() if peer.labels.get(key)
    ]
    levels: list[Level | None] = []
    for endpoint in endpoints:
        get = endpoint.labels.get
        levels.append(next((level for level, key, value in known if get(key) == value), None))
    return levels
