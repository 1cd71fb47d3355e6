"""The picker's container: our command line takes its arguments, ports and probes are its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from epp.catalog import Catalog
from epp.cli import _parser, serve_options
from epp.config.load import load
from epp.extproc.port.health import LIVENESS, READINESS
from epp.schedule import DEFAULT_WEIGHTS
from epp.serve.options import ServeOptions
from tests.support.chart import POOL, VALUES, all_of, container, one, read, render

FILES = sorted(path.stem for path in VALUES.glob("*.yaml"))
DEFAULT = ServeOptions()

every_file = pytest.mark.parametrize("name", FILES)


def options(values: dict[str, Any]) -> ServeOptions:
    """What `epp serve` understands of the container's arguments.

    Raises:
        SystemExit: an argument is refused.
    """
    arguments = container(render(values))["args"]
    return serve_options(_parser().parse_args(["serve", *arguments]))


def numbers(it: dict[str, Any]) -> dict[str, int]:
    return {port["name"]: port["containerPort"] for port in it["ports"]}


@every_file
def test_our_command_line_takes_every_argument_without_a_warning(name: str) -> None:
    assert options(read(name)).warnings == ()


@every_file
def test_ports_and_probes_are_those_of_the_arguments(name: str) -> None:
    values = read(name)
    told, picker = options(values), container(render(values))
    assert numbers(picker)["grpc"] == told.grpc_port
    assert numbers(picker)["grpc-health"] == told.grpc_health_port
    assert numbers(picker)["metrics"] == told.metrics_port
    liveness, readiness = picker["livenessProbe"]["grpc"], picker["readinessProbe"]["grpc"]
    assert liveness == {"port": told.grpc_health_port, "service": LIVENESS}
    assert readiness["port"] == told.grpc_health_port
    assert readiness["service"] in READINESS
    assert picker["startupProbe"]["grpc"] == liveness


def test_without_values_ports_and_drain_are_the_command_line_s_defaults() -> None:
    told = options(POOL)
    for field in ("grpc_port", "grpc_health_port", "metrics_port", "secure_serving",
                  "drain_timeout", "pool_group", "host"):  # fmt: skip
        assert getattr(told, field) == getattr(DEFAULT, field), field
    assert (told.pool_name, told.pool_namespace) == ("qwen", "models")
    assert told.config_file == ""


def test_standalone_without_a_pool_watches_pods_by_labels_and_ports() -> None:
    told = options(read("standalone"))
    assert told.pool_name == ""
    assert told.endpoint_selector == "app=vllm-qwen3-32b,llm-d.ai/role=decode"
    assert told.endpoint_target_ports == "8000,8001"
    assert told.pool_namespace == "models"


def test_fixed_endpoints_are_told_and_no_cluster_is_asked() -> None:
    objects = render(read("fixed-endpoints"))
    assert options(read("fixed-endpoints")).endpoints == "10.0.0.1:8000,10.0.0.2:8000"
    assert all_of(objects, "Role") == []
    pod = one(objects, "Deployment", "qwen-epp")["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False


def test_flags_and_environment_come_through_unchanged() -> None:
    told = options(read("everything"))
    assert told.verbosity == 4
    assert told.max_buffered_bytes == 1_000_000_000
    assert told.emit_endpoint_scores
    assert told.log_format == "console"
    assert told.plugin_paths == ("/config/mine.py",)
    environment = {
        each["name"]: each.get("value") for each in container(render(read("everything")))["env"]
    }
    assert environment["TZ"] == "UTC"
    assert environment["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://collector:4317"
    assert told.tracing is True


@pytest.mark.parametrize("name", ["everything", "router-tree", "standalone"])
def test_the_config_map_holds_the_configuration_that_is_read(name: str) -> None:
    objects, told = render(read(name)), options(read(name))
    maps = {it["metadata"]["name"]: it["data"] for it in all_of(objects, "ConfigMap")}
    files = maps[one(objects, "Deployment")["metadata"]["name"]]
    text = files[Path(told.config_file).name]
    assert load(text, kinds=Catalog(()).kinds).warnings == ()
    (mount,) = [m for m in container(objects)["volumeMounts"] if m["name"] == "config"]
    assert mount["mountPath"] == str(Path(told.config_file).parent)
    assert "subPath" not in mount  # such a mount never changes, so nothing would be read again


def test_other_engines_are_scraped_as_told_and_the_built_in_policy_stays() -> None:
    files = one(render(read("standalone")), "ConfigMap", "qwen-epp")["data"]
    catalog = Catalog(())
    config = load(
        files["scraping.yaml"], kinds=catalog.kinds, default_profile=DEFAULT_WEIGHTS
    ).config
    builtin = load(None, kinds=catalog.kinds, default_profile=DEFAULT_WEIGHTS).config
    assert config.scheduling_profiles == builtin.scheduling_profiles
    parameters = {plugin.type: plugin.parameters for plugin in config.plugins}
    assert parameters["core-metrics-extractor"] == {"defaultEngine": "sglang"}
    assert parameters["metrics-data-source"] == {
        "scheme": "https", "path": "/stats", "insecureSkipVerify": False,
    }  # fmt: skip


@every_file
def test_the_pod_is_not_root_and_writes_nowhere_but_tmp(name: str) -> None:
    objects = render(read(name))
    for deployment in all_of(objects, "Deployment"):
        pod = deployment["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for each in pod["containers"]:
            context = each["securityContext"]
            assert context["readOnlyRootFilesystem"]
            assert not context["allowPrivilegeEscalation"]
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert {"name": "tmp", "mountPath": "/tmp"} in each["volumeMounts"]


@every_file
def test_the_pod_stays_as_long_as_its_containers_need_to_drain(name: str) -> None:
    values = read(name)
    objects, told = render(values), options(values)
    pod = one(objects, "Deployment", all_of(objects, "Deployment")[0]["metadata"]["name"])
    for deployment in all_of(objects, "Deployment"):
        pod = deployment["spec"]["template"]["spec"]
        pauses = [c["lifecycle"]["preStop"]["sleep"]["seconds"] for c in pod["containers"]]
        assert max(pauses) < pod["terminationGracePeriodSeconds"]
    picker = container(objects)["lifecycle"]["preStop"]["sleep"]["seconds"]
    graces = [d["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
              for d in all_of(objects, "Deployment")]  # fmt: skip
    assert picker + told.drain_timeout < min(graces)


def test_a_pause_of_no_seconds_is_no_hook() -> None:
    """Older API servers refuse a hook that sleeps for 0 seconds."""
    paused = read("standalone") | {"picker": {"preStopSeconds": 0, "drainSeconds": 0}}
    for name in ("epp", "envoy"):
        assert "lifecycle" not in container(render(paused), name)
        assert "lifecycle" in container(render(read("standalone")), name)


def test_more_replicas_roll_without_a_gap_and_are_spread_and_protected() -> None:
    objects = render(read("everything"))
    spec = one(objects, "Deployment")["spec"]
    assert spec["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    (spread,) = spec["template"]["spec"]["topologySpreadConstraints"]
    assert spread["topologyKey"] == "kubernetes.io/hostname"
    assert one(objects, "PodDisruptionBudget")["spec"]["maxUnavailable"] == 1


def test_b173_with_leader_election_nothing_waits_for_replicas_that_are_never_ready() -> None:
    """Field problem B173: a roll waited for new pods that could not lead before the old ones."""
    objects = render(read("high-availability"))
    spec = one(objects, "Deployment")["spec"]
    assert spec["strategy"] == {"type": "Recreate"}
    assert all_of(objects, "PodDisruptionBudget") == []
    assert "--ha-enable-leader-election=true" in container(objects)["args"]
    assert spec["template"]["spec"]["priorityClassName"] == "system-cluster-critical"


@every_file
def test_a_leader_is_elected_only_if_told(name: str) -> None:
    elected = name == "high-availability"
    assert options(read(name)).ha_enable_leader_election is elected


def test_a_certificate_is_mounted_where_the_picker_looks() -> None:
    objects = render(read("fixed-endpoints"))
    told = options(read("fixed-endpoints"))
    (mount,) = [m for m in container(objects)["volumeMounts"] if m["name"] == "certificates"]
    assert mount["mountPath"] == told.cert_path


def test_the_memory_limit_holds_all_bodies_and_half_as_much_again() -> None:
    limit = container(render(POOL))["resources"]["limits"]["memory"]
    assert limit == "2Gi"
    assert DEFAULT.max_buffered_bytes * 1.5 < 2 * 2**30


def test_it_serves_the_pools_that_are_named_with_the_charts_own_if_there_is_one() -> None:
    named: dict[str, Any] = {"pools": {"names": ["chat", "code"]}}
    assert options(named).pool_names == ("chat", "code")
    assert options({**POOL, **named}).pool_names == ("qwen", "chat", "code")
    every = options(read("many-pools"))
    assert every.all_pools and every.pool_ports and every.pool_names == ()
    assert all_of(render(read("many-pools")), "InferencePool") == []


def test_a_port_that_a_pool_has_for_itself_is_open_and_of_the_same_number_in_the_service() -> None:
    objects = render(read("many-pools"))
    assert {9012, 9013} < set(numbers(container(objects)).values())
    ports = {port["port"]: port["targetPort"] for port in one(objects, "Service")["spec"]["ports"]}
    assert ports[9012] == "grpc-9012" and numbers(container(objects))["grpc-9012"] == 9012
    policy = one(objects, "NetworkPolicy")["spec"]["ingress"][0]["ports"]
    assert [port["port"] for port in policy] == ["grpc", "grpc-9012", "grpc-9013"]


@pytest.mark.parametrize("elected", [False, True])
def test_several_replicas_find_each_other_whether_or_not_one_leads(*, elected: bool) -> None:
    values = {**POOL, "picker": {"replicas": 2, "leaderElection": elected}}
    objects, told = render(values), options(values)
    service = one(objects, "Service", "qwen-epp-peers")["spec"]
    assert told.peers == "qwen-epp-peers:9005"
    assert told.peers_port == DEFAULT.peers_port == 9005
    assert told.peers_cert_dir == ""
    assert numbers(container(objects))["grpc-peers"] == 9005
    assert service["clusterIP"] == "None"  # its name is every replica's address
    assert service["publishNotReadyAddresses"]  # those that wait to lead, too
    assert [(port["port"], port["targetPort"]) for port in service["ports"]] == [
        (9005, "grpc-peers")
    ]


@pytest.mark.parametrize(
    "values",
    [POOL, {**POOL, "picker": {"replicas": 2, "peers": {"enabled": False}}}],
    ids=["one replica", "switched off"],
)
def test_otherwise_nothing_is_told_to_anybody(values: dict[str, Any]) -> None:
    objects = render(values)
    assert options(values).peers == ""
    assert [each["metadata"]["name"] for each in all_of(objects, "Service")] == ["qwen-epp"]
    assert "grpc-peers" not in numbers(container(objects))
    assert "grpc-peers" not in str(one(objects, "NetworkPolicy"))


def test_a_secret_is_for_mutual_tls_between_replicas() -> None:
    values = {**POOL, "picker": {"replicas": 2, "peers": {"secretName": "between"}}}
    objects = render(values)
    folder = options(values).peers_cert_dir
    (mount,) = [m for m in container(objects)["volumeMounts"] if m["mountPath"] == folder]
    volumes = one(objects, "Deployment", "qwen-epp")["spec"]["template"]["spec"]["volumes"]
    (volume,) = [each for each in volumes if each["name"] == mount["name"]]
    assert volume["secret"]["secretName"] == "between"
