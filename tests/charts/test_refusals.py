"""Wrong values end the installation with a line that names them."""

from __future__ import annotations

from typing import Any

import pytest
from helm_python import HelmError

from tests.support.chart import POOL, render

STANDALONE = {"mode": "standalone", **POOL}


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({**POOL, "pickr": {}}, "pickr"),
        ({**POOL, "picker": {"replica": 2}}, "replica"),
        ({**POOL, "mode": "gatewy"}, "mode"),
        ({**POOL, "provider": {"name": "nginx"}}, "provider"),
        ({**POOL, "picker": {"ports": {"extProc": 70_000}}}, "extProc"),
        ({**POOL, "picker": {"flags": {"grpc-port": 9000}}}, "grpc-port"),
        ({**POOL, "router": {"epp": {"replcas": 2}}}, "replcas"),
        ({"pool": {"matchLabels": {"a": "b"}, "targetPorts": []}}, "targetPorts"),
        ({"pool": {"matchLabels": {"a": "b"}, "targetPorts": [{"number": 1}] * 2}}, "targetPorts"),
        ({}, "pool.matchLabels is needed"),
        (
            {"picker": {"endpoints": ["10.0.0.1:8000"]}, "pool": {"create": True}},
            "pool.matchLabels is needed to create",
        ),
        (
            {**STANDALONE, "envoy": {"placement": "service"}, "picker": {"tls": {"enabled": False}}},
            "needs picker.tls.enabled",
        ),
        ({**POOL, "picker": {"leaderElection": True}}, "picker.replicas of 2 or more"),
        ({**POOL, "configFile": "mine.yaml"}, "mine.yaml is not in configFiles"),
        ({**POOL, "gateway": {"create": True}}, "gateway.className is needed"),
        (
            {"router": {"modelServers": {"matchLabels": {"a": "b"}, "protocol": "quic"}}},
            "router.modelServers.protocol: quic is not one of grpc, http",
        ),
        (
            {"pool": {"matchLabels": {"a": "b"}, "group": "inference.networking.x-k8s.io"}},
            "pools of inference.networking.k8s.io only",
        ),
    ],
)  # fmt: skip
def test_wrong_values_are_refused_by_name(values: dict[str, Any], word: str) -> None:
    with pytest.raises(HelmError) as refused:
        render(values)
    assert word in str(refused.value)
