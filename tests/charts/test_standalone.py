"""Standalone, the Envoy beside or before the picker has the bootstrap of `epp gateway`."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from epp.gateway.options import GatewayOptions
from epp.gateway.render import render as bootstrap_of
from epp.local.fleet import envoy_binary
from tests.support.chart import POOL, all_of, container, one, read, render

STANDALONE: dict[str, Any] = {"mode": "standalone", **POOL}
HOST = "qwen-epp.models.svc.cluster.local"


def bootstrap(values: dict[str, Any]) -> Any:
    objects = render(values)
    return yaml.safe_load(one(objects, "ConfigMap", "qwen-envoy")["data"]["envoy.yaml"])


@pytest.mark.parametrize(
    ("envoy", "picker", "expected"),
    [
        ({}, {}, GatewayOptions(listen_host="0.0.0.0", picker_tls=False)),
        (
            {"bootstrap": "stock", "port": 8088},
            {"ports": {"extProc": 9102}},
            GatewayOptions(mode="stock", listen_host="0.0.0.0", listen_port=8088,
                           picker_port=9102, picker_tls=False),
        ),
        (
            {"placement": "service"},
            {},
            GatewayOptions(listen_host="0.0.0.0", picker_host=HOST),
        ),
        (
            {"placement": "service", "bootstrap": "stock", "listenHost": "::"},
            {"ports": {"extProc": 9102}},
            GatewayOptions(mode="stock", listen_host="::", picker_host=HOST, picker_port=9102),
        ),
        (
            {"leanTtft": True},
            {},
            GatewayOptions(listen_host="0.0.0.0", picker_tls=False, lean_ttft=True),
        ),
        (
            {"placement": "service", "leanTtft": True, "leanUsage": True},
            {},
            GatewayOptions(listen_host="0.0.0.0", picker_host=HOST, lean_ttft=True,
                           lean_usage=True),
        ),
        (
            {"bootstrap": "stock", "leanTtft": True, "leanUsage": True},
            {},
            GatewayOptions(mode="stock", listen_host="0.0.0.0", picker_tls=False),
        ),
    ],
    ids=["sidecar", "stock sidecar with other ports", "service", "stock service over IPv6",
         "lean with the first chunk", "lean with all", "stock knows by itself"],
)  # fmt: skip
def test_the_bootstrap_is_what_epp_gateway_prints_for_it(
    envoy: dict[str, Any], picker: dict[str, Any], expected: GatewayOptions
) -> None:
    values = {**STANDALONE, "envoy": envoy, "picker": picker}
    assert bootstrap(values) == yaml.safe_load(bootstrap_of(expected))


@pytest.mark.parametrize("name", ["standalone", "standalone-service", "fixed-endpoints"])
def test_envoy_and_picker_agree_on_ports_and_tls(name: str) -> None:
    objects = render(read(name))
    static = bootstrap(read(name))["staticResources"]
    picker = next(cluster for cluster in static["clusters"] if cluster["name"] == "picker")
    place = picker["loadAssignment"]["endpoints"][0]["lbEndpoints"][0]["endpoint"]["address"]
    arguments = container(objects)["args"]
    assert f"--grpc-port={place['socketAddress']['portValue']}" in arguments
    tls = str("transportSocket" in picker).lower()
    assert f"--secure-serving={tls}" in arguments
    listening = static["listeners"][0]["address"]["socketAddress"]["portValue"]
    assert container(objects, "envoy")["ports"][0]["containerPort"] == listening
    mount = container(objects, "envoy")["volumeMounts"][0]["mountPath"]
    assert f"{mount}/envoy.yaml" in container(objects, "envoy")["args"]


@pytest.mark.e2e
@pytest.mark.parametrize("name", ["standalone", "standalone-service", "fixed-endpoints"])
def test_envoy_accepts_the_bootstrap(name: str, tmp_path: Path) -> None:
    objects = render(read(name))
    config = tmp_path / "envoy.yaml"
    config.write_text(one(objects, "ConfigMap", "qwen-envoy")["data"]["envoy.yaml"])
    arguments = [str(config) if each == "/etc/envoy/envoy.yaml" else each.replace("$(POD_NAME)", "a")
                 for each in container(objects, "envoy")["args"]]  # fmt: skip
    checked = subprocess.run(
        [envoy_binary(), *arguments, "--mode", "validate"],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stderr[-2000:]


def test_clients_reach_a_sidecar_by_the_picker_s_service() -> None:
    service = one(render(read("standalone")), "Service", "qwen-epp")
    http = next(port for port in service["spec"]["ports"] if port["name"] == "http")
    assert http["port"] == 8088
    assert all_of(render(read("standalone")), "InferencePool") == []


def test_envoys_of_their_own_are_several_and_start_anew_when_the_bootstrap_changes() -> None:
    def annotations(values: dict[str, Any]) -> Any:
        spec = one(render(values), "Deployment", "qwen-envoy")["spec"]
        assert spec["replicas"] == 2
        return spec["template"]["metadata"]["annotations"]

    service = {**STANDALONE, "envoy": {"placement": "service"}}
    moved = {**STANDALONE, "envoy": {"placement": "service", "port": 8090}}
    assert annotations(service) != annotations(moved)


def test_a_sidecar_outlives_the_requests_it_carries() -> None:
    objects = render(STANDALONE)
    picker, envoy = (
        container(objects, name)["lifecycle"]["preStop"]["sleep"]["seconds"]
        for name in ("epp", "envoy")
    )
    assert envoy == picker + 30
