"""What the chart brings for Prometheus, Grafana and tracing."""

from __future__ import annotations

import json

from tests.support.chart import CHART, POOL, all_of, container, one, read, render

DASHBOARDS = sorted(path.name for path in (CHART / "files").glob("*.json"))


def test_nothing_is_made_unless_asked_for() -> None:
    kinds = {each["kind"] for each in render(POOL)}
    assert not kinds & {"ServiceMonitor", "PodMonitoring", "PrometheusRule", "ConfigMap"}


def test_rules_are_the_chart_s_and_one_s_own_under_one_s_labels() -> None:
    rule = one(render(read("everything")), "PrometheusRule")
    names = [group["name"] for group in rule["spec"]["groups"]]
    assert names == ["mine", "epp"]
    alerts = {each["alert"] for each in rule["spec"]["groups"][1]["rules"]}
    assert "EppNoEndpoints" in alerts
    assert rule["metadata"]["labels"]["release"] == "prometheus"


def test_templates_of_alerts_reach_prometheus_unrendered() -> None:
    rule = one(render(read("everything")), "PrometheusRule")
    assert "{{ $labels.name }}" in json.dumps(rule)


def test_dashboards_come_as_grafana_s_sidecar_looks_for_them() -> None:
    dashboards = one(render(read("everything")), "ConfigMap", "chat-epp-dashboards")
    assert dashboards["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert sorted(dashboards["data"]) == DASHBOARDS != []
    for text in dashboards["data"].values():
        assert json.loads(text)["panels"]


def test_the_scraped_port_is_the_one_the_picker_listens_on() -> None:
    objects = render({**POOL, "monitoring": {"enabled": True}})
    (scrape,) = one(objects, "ServiceMonitor")["spec"]["endpoints"]
    ports = {port["name"]: port for port in one(objects, "Service")["spec"]["ports"]}
    target = ports[scrape["port"]]["targetPort"]
    numbers = {port["name"]: port["containerPort"] for port in container(objects)["ports"]}
    assert f"--metrics-port={numbers[target]}" in container(objects)["args"]
    google = {**POOL, "monitoring": {"enabled": True, "kind": "PodMonitoring"}}
    (scrape,) = one(render(google), "PodMonitoring")["spec"]["endpoints"]
    assert scrape["port"] in numbers
    assert all_of(render(google), "ServiceMonitor") == []
