"""Scorers: how good each endpoint is for a request, each from one point of view."""

from typing import Any

from epp.schedule.expected import ExpectedTtftScorer
from epp.schedule.scorers.affinity import (
    HeaderLabelAffinityScorer,
    MmEmbeddingsCacheScorer,
    SessionAffinityScorer,
    TopologyAffinityScorer,
)
from epp.schedule.scorers.attribute import EndpointAttributeScorer
from epp.schedule.scorers.context_length import ContextLengthAware
from epp.schedule.scorers.in_flight import InFlightScorer
from epp.schedule.scorers.kv_usage import KvCacheUtilizationScorer
from epp.schedule.scorers.load import ActiveRequestScorer, LoadAwareScorer, TokenLoadScorer
from epp.schedule.scorers.lora import LoraAffinityScorer
from epp.schedule.scorers.no_hit_lru import NoHitLruScorer
from epp.schedule.scorers.prefix import PrefixCacheScorer
from epp.schedule.scorers.queue import QueueScorer
from epp.schedule.scorers.running import RunningRequestsScorer

SCORERS: tuple[type[Any], ...] = (
    QueueScorer,
    RunningRequestsScorer,
    KvCacheUtilizationScorer,
    PrefixCacheScorer,
    InFlightScorer,
    ExpectedTtftScorer,
    LoraAffinityScorer,
    LoadAwareScorer,
    ActiveRequestScorer,
    TokenLoadScorer,
    NoHitLruScorer,
    ContextLengthAware,
    SessionAffinityScorer,
    HeaderLabelAffinityScorer,
    TopologyAffinityScorer,
    MmEmbeddingsCacheScorer,
    EndpointAttributeScorer,
)
