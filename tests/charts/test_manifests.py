"""The manifests to copy: valid, what the chart renders, and lean as `epp gateway` is."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from epp.gateway.render import GatewayOptions
from epp.gateway.render import render as render_gateway
from epp.headers import CONTROL
from tests.charts.derived.lean import FOLDER, PICKER, Lean
from tests.support.chart import PROVIDERS, Objects, one, render
from tests.support.manifests import check

FILES = sorted(path.name for path in FOLDER.glob("*.yaml"))
STOCK = [name for name in FILES if "lean" not in name and "many" not in name]
_JSON_PATCHES = ("EnvoyPatchPolicy", "jsonPatches")
POOL = {"matchLabels": {"app": "vllm-qwen3-32b"}}


def read(name: str) -> Objects:
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


def patches(applied_to: str) -> list[Any]:
    found = one(read("istio-lean.yaml"), "EnvoyFilter")["spec"]["configPatches"]
    return [each["patch"]["value"] for each in found if each["applyTo"] == applied_to]


@pytest.mark.parametrize("name", FILES)
def test_an_api_server_would_take_every_object(name: str) -> None:
    for each in read(name):
        check(each)
        assert each["metadata"]["namespace"] == "models"


def test_every_provider_of_the_chart_has_a_manifest() -> None:
    assert {name.removesuffix(".yaml") for name in STOCK} == set(PROVIDERS) - {"none"}


@pytest.mark.parametrize("name", STOCK)
def test_the_stock_manifest_is_what_the_chart_renders(name: str) -> None:
    provider = name.removesuffix(".yaml")
    values: dict[str, Any] = {
        "provider": {"name": provider},
        "pool": POOL,
        "gateway": {"create": True},
        "route": {"create": True},
    }
    rendered = {(it["kind"], it["metadata"]["name"]): it["spec"] for it in render(values)
                if "spec" in it and "/" in it["apiVersion"]}  # fmt: skip
    for each in read(name):
        assert rendered[each["kind"], each["metadata"]["name"]] == each["spec"]


def test_istio_is_told_to_ask_for_what_a_gateway_of_many_pools_asks_for() -> None:
    (patch,) = one(read("istio-many-pools.yaml"), "EnvoyFilter")["spec"]["configPatches"]
    many = render_gateway(GatewayOptions(mode="stock", pools=("chat",)))
    (listener,) = yaml.safe_load(many)["staticResources"]["listeners"]
    manager = listener["filterChains"][0]["filters"][0]["typedConfig"]
    picker = next(f for f in manager["httpFilters"] if f["name"] == patch["patch"]["value"]["name"])
    asked = patch["patch"]["value"]["typedConfig"]["requestAttributes"]
    assert asked == picker["typedConfig"]["requestAttributes"]


def test_istio_gets_the_filter_the_log_and_the_clusters_of_the_lean_bootstrap() -> None:
    lean = Lean(tls=True)
    assert patches("CLUSTER") == [lean.picker, lean.engines]
    assert patches("HTTP_FILTER") == [lean.filter]
    (manager,) = patches("NETWORK_FILTER")
    assert manager["typedConfig"]["accessLog"] == lean.manager["accessLog"]
    removed = manager["typedConfig"]["earlyHeaderMutationExtensions"]
    assert removed == lean.manager["earlyHeaderMutationExtensions"]
    assert patches("HTTP_ROUTE") == [{"route": {"cluster": lean.engines["name"], "timeout": "0s"}}]


def test_envoy_gateway_is_told_the_same_in_its_own_words() -> None:
    objects, lean = read("envoy-gateway-lean.yaml"), Lean(tls=False)
    (settings,) = one(objects, "EnvoyProxy")["spec"]["telemetry"]["accessLog"]["settings"]
    log = settings["sinks"][0]["als"]
    assert log["logName"] == lean.log["commonConfig"]["logName"]
    assert log["http"]["requestHeaders"] == lean.log["additionalRequestHeadersToLog"]
    assert log["http"]["responseHeaders"] == lean.log["additionalResponseHeadersToLog"]
    headers = one(objects, "ClientTrafficPolicy")["spec"]["headers"]
    assert headers["earlyRequestHeaders"]["remove"] == sorted(CONTROL)
    (picker,) = one(objects, "EnvoyExtensionPolicy")["spec"]["extProc"]
    config = lean.filter["typedConfig"]
    assert picker["processingMode"] == {"request": {"body": "FullDuplexStreamed"}}
    assert config["processingMode"]["requestBodyMode"] == "FULL_DUPLEX_STREAMED"
    assert picker["messageTimeout"] == config["messageTimeout"]
    forwarded = config["metadataOptions"]["forwardingNamespaces"]["untyped"]
    assert picker["metadata"]["accessibleNamespaces"] == forwarded
    cluster, route = one(objects, "EnvoyPatchPolicy")["spec"]["jsonPatches"]
    assert cluster["operation"]["value"] == lean.engines
    assert route["operation"]["value"] == cluster["name"] == lean.engines["name"]


@pytest.mark.parametrize(("name", "added"), [("istio", (0, 1, 2)), ("envoy-gateway", (2, 1, 0))])
def test_filters_that_read_answers_stand_before_the_picker_in_the_lean_bootstrap_s_order(
    name: str, added: tuple[int, ...]
) -> None:
    """Istio inserts each before the router; Envoy Gateway is told to add each at the front."""
    whole, more = read(f"{name}-lean.yaml"), read(f"{name}-lean-answers.yaml")
    istio = name == "istio"
    kind, patches = ("EnvoyFilter", "configPatches") if istio else _JSON_PATCHES
    main = one(whole, kind)["spec"]
    specs = sorted((each["spec"] for each in more), key=lambda spec: spec["priority"])
    found = [patch for spec in specs for patch in spec[patches]]
    lean = Lean(tls=True)
    values = [(each.get("patch") or each["operation"])["value"] for each in found]
    assert values == [lean.answers[i] for i in added]
    if istio:
        (picker,) = [each for each in main[patches] if each["applyTo"] == "HTTP_FILTER"]
        assert all(each["match"] == picker["match"] for each in found)
        assert max(spec["priority"] for spec in specs) < main.get("priority", 0)
    else:
        assert {each["name"] for each in found} == {main[patches][1]["name"]}
        assert all(each["operation"]["path"].endswith("/http_filters/0") for each in found)
    targets = {str(spec.get("targetRefs", spec.get("targetRef"))) for spec in [main, *specs]}
    assert len(targets) == 1


def test_every_way_to_the_picker_is_the_chart_s_service() -> None:
    service = one(render({"pool": POOL}), "Service")
    name, port = service["metadata"]["name"], service["spec"]["ports"][0]["port"]
    assert PICKER.startswith(f"{name}.models.")
    objects = read("envoy-gateway-lean.yaml")
    (settings,) = one(objects, "EnvoyProxy")["spec"]["telemetry"]["accessLog"]["settings"]
    (picker,) = one(objects, "EnvoyExtensionPolicy")["spec"]["extProc"]
    for backends in (settings["sinks"][0]["als"]["backendRefs"], picker["backendRefs"]):
        assert backends == [{"name": name, "port": port}]


def test_the_readme_names_every_manifest() -> None:
    text = (FOLDER / "README.md").read_text()
    assert [name for name in FILES if f"`{name}`" not in text] == []
