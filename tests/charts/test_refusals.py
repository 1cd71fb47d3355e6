"""Wrong values end the installation with a line that names them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from helm_python import HelmError

from tests.support.chart import POOL, ROOT, all_of, render

CONFIGS = ROOT / "tests/data/config"

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
        ({**STANDALONE, "pools": {"all": True}}, "pools needs mode: gateway"),
        ({**POOL, "pools": {"ports": [9012]}}, "need pools.all or pools.names"),
        ({"pools": {"all": True}, "route": {"create": True}}, "set pool.matchLabels"),
        ({"pools": {"all": True, "ports": [0]}}, "ports"),
        ({**POOL, "picker": {"flags": {"all-pools": True}}}, "all-pools"),
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


@pytest.mark.parametrize(
    ("config", "word"),
    [
        (
            {"plugins": [{"type": "queue-scorer", "paramters": {}}]},
            "'/config/plugins/0': additional properties 'paramters' not allowed",
        ),
        ({"profiles": []}, "'/config': additional properties 'profiles' not allowed"),
        (
            {"plugins": [{"type": "max-score-picker", "parameters": {"maxNumOfEndpoints": 0}}]},
            "'/config/plugins/0/parameters/maxNumOfEndpoints': minimum: got 0, want 1",
        ),
        ({"plugins": [{"type": "predicted-latency-producer"}]}, "'/config/plugins/0/type'"),
        (
            {"apiVersion": "llm-d.ai/v1alpha1", "schedulingProfiles": [{"plugins": []}]},
            "'/config/schedulingProfiles/0': missing property 'name'",
        ),
    ],
)
def test_a_wrong_configuration_is_refused_with_its_place(config: dict[str, Any], word: str) -> None:
    with pytest.raises(HelmError) as refused:
        render({**POOL, "config": config})
    assert word in str(refused.value)


@pytest.mark.parametrize(
    "path",
    [
        path
        for folder in ("shapes", "dialects")
        for path in sorted((CONFIGS / folder).glob("*.yaml"))
    ],
    ids=lambda path: path.name,
)
def test_a_configuration_that_the_picker_reads_passes_in_every_spelling(path: Path) -> None:
    text = path.read_text()
    for config in (yaml.safe_load(text), text):
        (shown,) = [
            each["data"]["config.yaml"]
            for each in all_of(render({**POOL, "config": config}), "ConfigMap")
            if "config.yaml" in each["data"]
        ]
        assert yaml.safe_load(shown) == yaml.safe_load(text)


@pytest.mark.parametrize(
    "plugin",
    [
        {"type": "mine", "parameters": {"anything": 1}},
        {"type": "max-score-picker", "parameters": None},
    ],
)
def test_plugins_of_your_own_and_empty_parameters_pass(plugin: dict[str, Any]) -> None:
    assert render({**POOL, "config": {"plugins": [plugin]}})
