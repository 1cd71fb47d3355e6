"""Short ways to say what a test is about; every default is boring on purpose."""

from __future__ import annotations

import random
from collections.abc import Mapping

from epp.clock import Clock, ManualClock
from epp.ledger import Ledger
from epp.model import (
    CacheCounts,
    CacheInfo,
    Ending,
    Endpoint,
    EndpointId,
    InferenceRequest,
    Load,
    LoraInfo,
    Pick,
)
from epp.plugin import Tools


def load(
    *,
    at: float = 0.0,
    queued: float | None = 0,
    running: float | None = 0,
    kv_usage: float | None = 0.0,
    cache: CacheInfo | None = None,
    lora: LoraInfo | None = None,
    asleep: bool = False,
    attributes: Mapping[str, float] | None = None,
    counts: CacheCounts | None = None,
) -> Load:
    return Load(at, queued, running, kv_usage, cache, lora, asleep, attributes or {}, counts)


def endpoint(
    name: str = "a",
    *,
    host: str = "10.0.0.1",
    port: int = 8000,
    labels: Mapping[str, str] | None = None,
    namespace: str = "default",
    rank: int = 0,
    draining: bool = False,
    reachable: bool = True,
    load: Load | None = None,
    queued: float | None = 0,
    at: float = 0.0,
) -> Endpoint:
    """An endpoint scraped at ``at``; never scraped if ``queued`` is None and no load is given."""
    if load is None and queued is not None:
        load = Load(at=at, queued=queued, running=0, kv_usage=0.0)
    return Endpoint(
        EndpointId(name), host, port, name, namespace, rank, labels or {}, draining, reachable, load
    )


def request(**facts: object) -> InferenceRequest:
    known: dict[str, object] = {
        "id": "r-1",
        "headers": {},
        "body": b"{}",
        "model": "llama",
        "target_model": "llama",
    }
    return InferenceRequest(**{**known, **facts})  # type: ignore[arg-type]


def pick(*names: str) -> Pick:
    return Pick(tuple(endpoint(name) for name in names or ("a",)))


def tools(
    *,
    now: float = 0.0,
    seed: int = 0,
    clock: Clock | None = None,
    ledger: Ledger | None = None,
    plugins: Mapping[str, object] | None = None,
) -> Tools:
    return Tools(
        clock=clock or ManualClock(now),
        random=random.Random(seed),
        ledger=ledger or Ledger(),
        plugins=plugins or {},
    )


class Diary:
    """An observer that writes down how exchanges ended."""

    def __init__(self) -> None:
        self.picks: list[Pick] = []
        self.endings: list[Ending] = []

    def picked(self, request: InferenceRequest, pick: Pick) -> None:
        self.picks.append(pick)

    def ended(self, request: InferenceRequest, pick: Pick, ending: Ending) -> None:
        self.endings.append(ending)
