"""Values files for other charts mean here what they mean there."""

from __future__ import annotations

from typing import Any

import pytest

from epp.cli import _parser, serve_options
from epp.serve.options import ServeOptions
from tests.charts.derived.documented import at, defaults, translations
from tests.support.chart import Objects, all_of, container, notes, one, read, render


def told(objects: Objects) -> ServeOptions:
    arguments = container(objects)["args"]
    return serve_options(_parser().parse_args(["serve", *arguments]))


def test_a_values_file_of_llm_d_s_router_chart() -> None:
    objects = render(read("router-tree"))
    picker, options = container(objects), told(objects)
    pool = one(objects, "InferencePool")["spec"]
    assert one(objects, "Deployment")["spec"]["replicas"] == 2
    assert (options.grpc_port, options.grpc_health_port) == (9102, 9103)
    assert (options.verbosity, options.log_format) == (5, "json")
    assert not options.secure_serving
    assert options.config_file == "/config/mine.yaml"
    assert picker["image"] == "epp:0.1.0"
    assert picker["resources"]["requests"] == {"cpu": "4", "memory": "8Gi"}
    assert pool["selector"]["matchLabels"] == {"app": "sglang"}
    assert pool["targetPorts"] == [{"number": 30_000}, {"number": 30_001}]
    assert pool["appProtocol"] == "kubernetes.io/h2c"
    assert pool["endpointPickerRef"]["failureMode"] == "FailClose"
    assert one(objects, "InferenceObjective")["spec"]["priority"] == 5
    assert one(objects, "PodMonitoring")["metadata"]["labels"]["a"] == "b"
    assert one(objects, "HTTPRoute")["spec"]["parentRefs"][0]["name"] == "front"
    assert "timeouts" not in one(objects, "HTTPRoute")["spec"]["rules"][0]
    assert one(objects, "HealthCheckPolicy")["spec"]["default"]["config"]["httpHealthCheck"] == {
        "requestPath": "/health", "port": 30_000,
    }  # fmt: skip
    assert {"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": "http://jaeger:4317"} in picker["env"]
    assert {"name": "http", "port": 8081, "targetPort": 8081, "protocol": "TCP"} in one(
        objects, "Service", "qwen-epp"
    )["spec"]["ports"]


def test_a_values_file_of_its_standalone_chart() -> None:
    objects = render(read("router-standalone"))
    envoy = one(objects, "Deployment", "qwen-envoy")["spec"]
    assert envoy["replicas"] == 4
    assert envoy["template"]["spec"]["containers"][0]["resources"] == {"requests": {"cpu": "4"}}
    assert told(objects).endpoint_selector == "app=vllm,llm-d.ai/role=decode"
    assert all_of(objects, "InferencePool") == []


def test_a_values_file_of_the_inference_extension_s_charts() -> None:
    objects = render(read("extension-tree"))
    options = told(objects)
    assert one(objects, "Deployment")["spec"]["replicas"] == 2
    assert (options.verbosity, options.refresh_metrics_interval) == (3, 0.05)
    assert options.config_file == ""
    environment = {each["name"]: each.get("value") for each in container(objects)["env"]}
    assert (environment["TZ"], environment["LIMIT"]) == ("UTC", "1000000")
    rule = one(objects, "DestinationRule")["spec"]
    assert rule["host"] == "qwen-epp.models.svc.cluster.local"
    assert rule["trafficPolicy"]["tls"] == {"mode": "SIMPLE", "insecureSkipVerify": True}
    assert "connectionPool" in rule["trafficPolicy"]
    route = one(objects, "HTTPRoute")["spec"]["rules"][0]
    assert route["matches"][0]["headers"] == [{"type": "Exact", "name": "x-route", "value": "blue"}]
    assert one(objects, "ServiceMonitor")["spec"]["endpoints"][0]["interval"] == "10s"


@pytest.mark.parametrize("as_list", [False, True])
def test_flags_of_other_charts_bring_the_rights_and_ports_they_need(as_list: bool) -> None:
    flags: Any = {"ha-enable-leader-election": True, "metrics-endpoint-auth": "true",
                  "grpc-port": 9100, "v": 4}  # fmt: skip
    if as_list:
        flags = [{"name": name, "value": value} for name, value in flags.items()]
    tree = {"extension": {"inferenceExtension": {"flags": flags, "replicas": 2},
                          "inferencePool": {"modelServers": {"matchLabels": {"a": "b"}}}},
            "router": {"router": {"epp": {"flags": flags, "replicas": 2},
                                  "modelServers": {"matchLabels": {"a": "b"}}}}}  # fmt: skip
    objects = render(tree["extension" if as_list else "router"])
    options = told(objects)
    assert (options.ha_enable_leader_election, options.metrics_endpoint_auth) == (True, True)
    assert (options.grpc_port, options.verbosity) == (9100, 4)
    ports = {each["name"]: each["containerPort"] for each in container(objects)["ports"]}
    assert ports["grpc"] == 9100
    names = [each.partition("=")[0] for each in container(objects)["args"]]
    assert len(names) == len(set(names))
    assert any("leases" in rule["resources"] for rule in one(objects, "Role")["rules"])
    assert one(objects, "ClusterRole")["rules"][0]["resources"] == ["tokenreviews"]
    assert one(objects, "Deployment")["spec"]["strategy"] == {"type": "Recreate"}


def test_flags_of_other_charts_may_turn_off_what_needs_rights() -> None:
    flags = {"ha-enable-leader-election": "false", "metrics-endpoint-auth": False}
    objects = render({
        "router": {"epp": {"flags": flags, "replicas": 2},
                   "modelServers": {"matchLabels": {"a": "b"}}},
    })  # fmt: skip
    options = told(objects)
    assert (options.ha_enable_leader_election, options.metrics_endpoint_auth) == (False, False)
    assert all_of(objects, "ClusterRole") == []


def test_installing_says_which_values_change_nothing() -> None:
    said = notes(read("router-tree"))
    for path in (
        "router.epp.image",
        "scraping",
        "router.monitoring.prometheus.auth",
    ):
        assert f"* {path} changes nothing: " in said
    assert "changes nothing" not in notes(read("gateway"))


@pytest.mark.parametrize("path", [each.to for each in translations() if each.to])
def test_every_translation_leads_to_a_value_there_is(path: str) -> None:
    at(path, defaults())


def test_a_false_of_another_chart_wins_over_our_true() -> None:
    values: dict[str, Any] = {
        "router": {"inferencePool": {"create": False}, "modelServers": {"matchLabels": {"a": "b"}}}
    }
    objects = render(values)
    assert all_of(objects, "InferencePool") == []
    assert told(objects).pool_name == "qwen"
