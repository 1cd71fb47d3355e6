"""Parameters to show for each plugin that is seldom used with its defaults alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

EXAMPLES: Mapping[str, Mapping[str, Any]] = {
    "label-selector-filter": {
        "matchLabels": {"pool": "chat"},
        "matchExpressions": [{"key": "gpu", "operator": "In", "values": ["h100", "h200"]}],
    },
    "by-label-selector": {"pool": "chat"},
    "by-label": {"label": "gpu", "validValues": ["h100", "h200"], "allowsNoLabel": False},
    "prefix-cache-affinity-filter": {"affinityThreshold": 0.8, "peakPrefillThroughput": 40000},
    "session-affinity-filter": {
        "strategy": "session_id",
        "sessionIdConfig": {"sources": [{"header": "x-session-id"}], "evictionTtlSeconds": 600},
    },
    "session-affinity-scorer": {
        "strategy": "encoded_endpoint_header",
        "encodedEndpointHeaderConfig": {"header": "x-session-token"},
    },
    "utilization-filter": {
        "conditions": [{"metric": "waiting-queue", "maxValue": 64}],
        "fallbackOnEmpty": True,
    },
    "endpoint-attribute-filter": {
        "attribute": "gpu_utilization",
        "onMissing": "Pass",
        "algorithm": {
            "type": "threshold",
            "threshold": {"operator": "LessThanOrEqual", "value": 0.9},
        },
    },
    "endpoint-attribute-scorer": {
        "attributeKey": "gpu_utilization",
        "algorithm": {
            "type": "linear_lower_is_better",
            "normalization": {"fixedRange": {"min": 0, "max": 1}},
        },
    },
    "topology-affinity-filter": {"minAffinity": "zone"},
    "prefix-cache-scorer": {"matchLengthWeight": 0.5},
    "in-flight-load-scorer": {"tokensPerRequest": 128},
    "load-aware-scorer": {"threshold": 64},
    "active-request-scorer": {"idleThreshold": 2},
    "token-load-scorer": {"queueThresholdTokens": 131072},
    "context-length-aware": {"enableFiltering": True},
    "header-label-affinity-scorer": {"headerName": "x-region", "labelKey": "region"},
    "max-score-picker": {"maxNumOfEndpoints": 2},
    "disagg-profile-handler": {"deciders": {"prefill": "prefix-based-pd-decider"}},
    "pd-profile-handler": {"deciderPluginName": "prefix-based-pd-decider"},
    "data-parallel-profile-handler": {"primaryPort": 8000},
    "header-profile-handler": {"headerName": "EPP-Profile", "defaultProfile": "decode"},
    "prefix-based-pd-decider": {"nonCachedTokens": 512},
    "utilization-detector": {"queueDepthThreshold": 8, "stalenessPolicy": "ignore"},
    "concurrency-detector": {"concurrencyMode": "hybrid", "maxConcurrency": 64},
    "agent-identity": {"additionalSessionHeaders": ["x-my-agent"]},
    "session-id-producer": {"cookieName": "sid"},
    "approx-prefix-cache-producer": {"lruCapacityPerServer": 31250},
    "precise-prefix-cache-producer": {
        "kvEventsConfig": {"podDiscoveryConfig": {"socketPort": 5557, "replaySocketPort": 5657}},
    },
    "token-producer": {"vllm": {"url": "http://render:8000"}},
    "request-attribute-reporter": {
        "attributes": [
            {"key": {"name": "x-total-tokens"}, "expression": "usage.total_tokens"},
        ]
    },
    "metrics-data-source": {"scheme": "https", "caCertPath": "/etc/ca/ca.crt", "interval": "100ms"},
    "core-metrics-extractor": {
        "engineConfigs": [
            {"name": "mine", "queuedRequestsSpec": "queue_length", "kvUsageSpec": "kv_used_ratio"},
        ]
    },
    "file-discovery": {"path": "/etc/epp/endpoints.yaml", "watchFile": True},
}


def entry(type_: str) -> dict[str, Any]:
    """Return a plugin's entry in a configuration."""
    parameters = EXAMPLES.get(type_)
    return {"type": type_, "parameters": dict(parameters)} if parameters else {"type": type_}


def yaml_of(type_: str) -> str:
    """Return a plugin's entry as YAML, a list of one."""
    return yaml.safe_dump([entry(type_)], sort_keys=False, default_flow_style=False).rstrip()
