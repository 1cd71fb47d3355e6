"""Older names of plugins' types and parameters, and today's, as tables for `old_plugins`.

**Source:** plugins of GAIE 1.0 to 1.5 and of llm-d-inference-scheduler 0.3 to 0.10.
"""

from __future__ import annotations

from collections.abc import Mapping

BYTES_PER_TOKEN = 4  #: an old block size counts characters, about so many a token
APPROX, PRECISE = "approx-prefix-cache-producer", "precise-prefix-cache-producer"
PREFIX_SCORER = "prefix-cache-scorer"
PD_DECIDER, ALWAYS_DECIDER = "prefix-based-pd-decider", "always-disagg-pd-decider"
DISAGG = "disagg-profile-handler"
EXTRACTOR = "core-metrics-extractor"

RENAMED: Mapping[str, str] = {
    "kv-cache-scorer": "kv-cache-utilization-scorer",
    "max-score": "max-score-picker",
    "single-profile": "single-profile-handler",
    "tokenizer": "token-producer",
    "model-server-protocol-metrics": EXTRACTOR,
    "active-request-filter": "utilization-filter",
    "predicted-latency-scorer": "latency-scorer",
    "prefix-disaggregation-decider": PD_DECIDER,
    "eviction-sheddable-filter": "sheddable-eviction-filter",
    "eviction-priority-then-time-ordering": "priority-then-time-eviction-order-policy",
}

_HEADERS = "the profile handler sets the headers itself"
MOOT: Mapping[str, str] = {"prefill-header-handler": _HEADERS, "disagg-headers-handler": _HEADERS}
"""Types that have no effect any more, and why."""

_FIRST = "the prefix match of the first producer counts"
_BLOCKS = "the block size of the prefix producer counts"
DROPPED: Mapping[str, Mapping[str, str]] = {
    "pd-profile-handler": {
        "prefixPluginType": _FIRST,
        "prefixPluginName": _FIRST,
        "hashBlockSize": _BLOCKS,
    },
    PD_DECIDER: {"prefixPluginType": _FIRST, "prefixPluginName": _FIRST},
    "no-hit-lru-scorer": {"prefixPluginType": _FIRST, "prefixPluginName": _FIRST},
}
"""By type: parameters without effect, and why."""

MOVED: Mapping[str, Mapping[str, str]] = {
    DISAGG: {
        "decodeProfile": "profiles.decode",
        "prefillProfile": "profiles.prefill",
        "encodeProfile": "profiles.encode",
        "deciderPluginName": "deciders.prefill",
        "prefillDeciderPluginName": "deciders.prefill",
        "encodeDeciderPluginName": "deciders.encode",
    },
    PRECISE: {
        "tokenProcessorConfig.blockSize": "tokenProcessorConfig.blockSizeTokens",
        "indexerConfig.speculativeIndexing": "speculativeIndexing",
        "indexerConfig.tokenizersPoolConfig": "tokenizersPoolConfig",
    },
}
"""By type: where a parameter's value belongs today."""

PREFIX_KEYS = (
    "autoTune",
    "blockSizeTokens",
    "maxPrefixBlocksToMatch",
    "maxPrefixTokensToMatch",
    "lruCapacityPerServer",
)
"""Parameters of the prefix scorer that are the producer's today."""
ENGINE_LABELS = ("llm-d.ai/engine-type", "inference.networking.k8s.io/engine-type")
CHARACTER_KEYS = ("hashBlockSize", "blockSize")  #: block sizes in characters
SPEC_KEYS = (
    "queuedRequestsSpec",
    "runningRequestsSpec",
    "kvUsageSpec",
    "loraSpec",
    "cacheInfoSpec",
)
"""Parameters of the extractor when it knew one engine."""
