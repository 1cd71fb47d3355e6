"""What the chart makes of every values file, for every provider: valid, whole, consistent."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.chart import (
    PROVIDERS,
    VALUES,
    Objects,
    all_of,
    complaints,
    one,
    read,
    render,
)
from tests.support.manifests import Wrong, check

FILES = sorted(path.stem for path in VALUES.glob("*.yaml"))
#: Kinds a provider adds, with all that can be asked for turned on.
ADDED = {
    "istio": {"DestinationRule"},
    "gke": {"HealthCheckPolicy", "GCPBackendPolicy"},
}

every_file = pytest.mark.parametrize("name", FILES)


def kinds(objects: Objects) -> set[str]:
    return {each["kind"] for each in objects}


@every_file
def test_lint_has_nothing_against_any_values_file(name: str) -> None:
    assert complaints(read(name)) == []


@every_file
def test_an_api_server_would_take_every_object(name: str) -> None:
    objects = render(read(name))
    assert len(objects) >= 6
    for each in objects:
        check(each)


@every_file
@pytest.mark.parametrize("provider", PROVIDERS)
def test_every_provider_gets_valid_objects_of_every_values_file(name: str, provider: str) -> None:
    values = {**read(name), "provider": {"name": provider}}
    if values.get("gateway", {}).get("create") and provider == "none":
        values["gateway"]["className"] = "mine"
    for each in render(values):
        check(each)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_every_provider_gets_its_own_kinds(provider: str) -> None:
    values: dict[str, Any] = read("everything") | {"provider": {"name": provider}}
    objects = render(values)
    without = render(values | {"provider": {"name": "none"}})
    assert kinds(objects) - kinds(without) == ADDED.get(provider, set())


@pytest.mark.parametrize(
    ("provider", "class_name"),
    [
        ("istio", "istio"),
        ("gke", "gke-l7-regional-external-managed"),
        ("kgateway", "kgateway"),
        ("agentgateway", "agentgateway"),
        ("envoy-gateway", "eg"),
    ],
)
def test_a_gateway_has_its_provider_s_usual_class(provider: str, class_name: str) -> None:
    values = read("gateway") | {"provider": {"name": provider}, "gateway": {"create": True}}
    assert one(render(values), "Gateway")["spec"]["gatewayClassName"] == class_name


@every_file
def test_selectors_select_the_pods_they_are_meant_for_and_no_others(name: str) -> None:
    objects = render(read(name))
    pods = {
        each["metadata"]["name"]: each["spec"]["template"]["metadata"]["labels"]
        for each in all_of(objects, "Deployment")
    }

    def selected(labels: dict[str, str]) -> list[str]:
        return [pod for pod, has in pods.items() if labels.items() <= has.items()]

    for kind in ("Deployment", "Service", "NetworkPolicy", "PodDisruptionBudget"):
        for each in all_of(objects, kind):
            spec = each["spec"]
            selector = spec["selector"] if "selector" in spec else spec["podSelector"]
            labels = selector.get("matchLabels", selector)
            assert selected(labels) == [each["metadata"]["name"].removesuffix("-peers")], kind
    for monitor in all_of(objects, "ServiceMonitor"):
        found = [
            service["metadata"]["name"]
            for service in all_of(objects, "Service")
            if monitor["spec"]["selector"]["matchLabels"].items()
            <= service["metadata"]["labels"].items()
        ]
        assert found == [monitor["metadata"]["name"]]


@every_file
def test_everything_named_in_an_object_is_there(name: str) -> None:
    objects = render(read(name))
    maps = {each["metadata"]["name"] for each in all_of(objects, "ConfigMap")}
    for deployment in all_of(objects, "Deployment"):
        pod = deployment["spec"]["template"]["spec"]
        volumes = {volume["name"] for volume in pod["volumes"]}
        for each in pod["containers"]:
            assert {mount["name"] for mount in each["volumeMounts"]} <= volumes
        assert {v["configMap"]["name"] for v in pod["volumes"] if "configMap" in v} <= maps
    ports = {
        port["name"]
        for deployment in all_of(objects, "Deployment")
        for each in deployment["spec"]["template"]["spec"]["containers"]
        for port in each["ports"]
    }
    extra = read(name).get("service", {}).get("extraPorts", [])
    extra += read(name).get("router", {}).get("extraServicePorts", [])
    for service in all_of(objects, "Service"):
        ours = [port for port in service["spec"]["ports"] if port not in extra]
        assert {port["targetPort"] for port in ours} <= ports


@every_file
def test_the_pool_asks_the_picker_s_service(name: str) -> None:
    objects = render(read(name))
    for pool in all_of(objects, "InferencePool"):
        picker = pool["spec"]["endpointPickerRef"]
        ports = one(objects, "Service", picker["name"])["spec"]["ports"]
        extproc = next(port for port in ports if port["name"] == "grpc-ext-proc")
        assert extproc["port"] == picker["port"]["number"]
        assert extproc["appProtocol"] == "kubernetes.io/h2c"
        assert all(objective["spec"]["poolRef"]["name"] == pool["metadata"]["name"]
                   for objective in all_of(objects, "InferenceObjective"))  # fmt: skip
        for route in all_of(objects, "HTTPRoute"):
            (backend,) = route["spec"]["rules"][0]["backendRefs"]
            assert (backend["kind"], backend["name"]) == ("InferencePool", pool["metadata"]["name"])


def test_the_check_refuses_what_an_api_server_would_refuse() -> None:
    pool = one(render(read("gateway")), "InferencePool")
    pool["spec"]["endpointPickerRef"]["failurMode"] = "FailOpen"
    with pytest.raises(Wrong, match="failurMode"):
        check(pool)
    deployment = one(render(read("gateway")), "Deployment")
    deployment["spec"]["template"]["spec"]["containers"][0]["imag"] = "x"
    with pytest.raises(Wrong, match="imag"):
        check(deployment)


def test_one_s_own_traffic_policy_wins_over_ours() -> None:
    own = {"tls": {"mode": "MUTUAL", "credentialName": "x"}, "connectionPool": {}}
    provider = {"name": "istio", "istio": {"destinationRule": {"trafficPolicy": own}}}
    rule = one(render(read("gateway") | {"provider": provider}), "DestinationRule")
    check(rule)
    assert rule["spec"]["trafficPolicy"]["tls"]["mode"] == "MUTUAL"
    assert "connectionPool" in rule["spec"]["trafficPolicy"]
