"""The picker's image put into a chart made for the Go router: its flags, ports and probes.

**Source:** what llm-d's charts render, and the flags of llm-d-router and GAIE 1.5; `tests/data`.
"""

from __future__ import annotations

import asyncio
import csv
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest

from epp.cli import _kebab, _parser, serve_options
from epp.collect.sources import CoreMetricsExtractor, EngineConfig, MetricsDataSource
from epp.collect.static import StaticEndpoints
from epp.errors import ConfigError
from epp.rules import RuleBook
from epp.serve.admin_port import cluster_of
from epp.serve.options import ServeOptions
from epp.serve.origin import Told, origin_of, pool_label_of, scraping_of
from tests.support import build
from tests.support import ext_proc as gw
from tests.support.ext_proc import Gateway
from tests.support.metric_pages import metric_pages
from tests.support.process import eventually
from tests.support.served import LOCAL, Health, Served, loads_known, serving
from tests.support.upstream import refusal

DATA = Path(__file__).parents[1] / "data"
EXT_PROC = "envoy.service.ext_proc.v3.ExternalProcessor"
PORT_FLAGS = ("--grpc-port", "--grpc-health-port", "--metrics-port")
ENDS_SECONDS = 10.0


class Rendered(msgspec.Struct, forbid_unknown_fields=True):
    """One container of a chart."""

    name: str
    probes: tuple[str, str]
    arguments: list[str]

    def here(self) -> list[str]:
        """The arguments with free ports, and files where they are here."""
        arguments, free = [], False
        for each in self.arguments:
            arguments.append("0" if free else each.replace("/config/", f"{DATA}/chart/"))
            free = each in PORT_FLAGS
        return [*arguments, *LOCAL]


CHARTS = msgspec.yaml.decode((DATA / "chart/arguments.yaml").read_bytes(), type=list[Rendered])
every_chart = pytest.mark.parametrize("chart", [pytest.param(c, id=c.name) for c in CHARTS])

# --- charts ------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def chart_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {
        "NAMESPACE": "models",
        "POD_NAME": "vllm-epp-6c9f-x2x",
        "OTEL_SERVICE_NAME": "epp",
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4317",
        "OTEL_TRACES_EXPORTER": "otlp",
        "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
        "OTEL_TRACES_SAMPLER_ARG": "0.1",
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)


def secure(chart: Rendered) -> bool:
    return "--secure-serving=false" not in chart.arguments


def ask(picker: Served) -> list[Any]:
    async def main() -> list[Any]:
        async with Gateway(picker.ports["grpc"]) as gateway:
            return await gateway.exchange(
                [gw.request_head(), gw.request_body(b'{"model":"m","prompt":"p"}', ends=True)]
            )

    return asyncio.run(main())


@every_chart
def test_with_endpoints_told_every_probe_of_a_chart_succeeds(
    chart: Rendered, tmp_path: Path
) -> None:
    with metric_pages(1) as (page,):
        page.show(0, 0.0)
        flags = (*chart.here(), f"--endpoints={page.address}", "--secure-serving=false")
        with serving(tmp_path, *flags, ports=()) as picker:
            with Health(picker.ports["health"]) as kubelet, Health(picker.ports["grpc"]) as envoy:
                assert [kubelet.check(name) for name in chart.probes] == ["SERVING", "SERVING"]
                assert envoy.check(EXT_PROC) == "SERVING"
            assert gw.destination(ask(picker)[0]) == page.address
            assert picker.entries("error") == []


@pytest.mark.parametrize("chart", [pytest.param(c, id=c.name) for c in CHARTS[1:3]])
def test_without_endpoints_or_cluster_it_lives_is_not_ready_and_says_why(
    chart: Rendered, tmp_path: Path
) -> None:
    with serving(tmp_path, *chart.here(), ports=()) as picker:
        with Health(picker.ports["health"]) as kubelet:
            assert kubelet.check("liveness") == "SERVING"
            assert kubelet.check("readiness") == "NOT_SERVING"
            assert kubelet.check(chart.probes[1]) == "NOT_SERVING"
        (why,) = picker.entries("error")
        for word in ("--endpoints ", "--endpoints-file", "file-discovery", "Kubernetes cluster"):
            assert word in why
        assert ("vllm" if "--pool-name" in chart.arguments else "role=decode") in why
        if not secure(chart):
            status, headers, _ = refusal(ask(picker))
            assert status == 503
            assert headers["x-llm-d-request-dropped-reason"] == "rejected-no-endpoints"


def test_without_any_word_on_endpoints_it_does_not_start(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "epp", *LOCAL], capture_output=True, text=True, timeout=ENDS_SECONDS,
        cwd=DATA.parents[1], check=False,
    )  # fmt: skip
    assert ended.returncode == 2
    assert "say where the endpoints are" in ended.stderr.splitlines()[-1]


def test_each_flag_that_does_nothing_is_warned_of_once_in_the_log(tmp_path: Path) -> None:
    flags = (
        "--endpoints=127.0.0.1:9",
        "--enable-cert-reload=false",
        "--enable-pprof=true",
        "--zap-encoder=json",
    )
    with serving(tmp_path, *flags) as picker:
        said = [entry.split()[0] for entry in picker.entries("warn") if entry.startswith("--")]
    assert sorted(said) == ["--enable-cert-reload", "--enable-pprof"]


# --- flags -------------------------------------------------------------------------


def rows() -> Iterator[Any]:
    lines = [line for line in (DATA / "flags.tsv").read_text().splitlines() if line[0] != "#"]
    for row in csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE):
        yield pytest.param(row, id=f"{row['flag']}={row['value']}")


def options(*flags: str) -> ServeOptions:
    return serve_options(_parser().parse_args(["serve", *_kebab(list(flags))]))


@pytest.mark.parametrize("row", list(rows()))
def test_every_flag_of_the_go_pickers_has_its_fate(row: dict[str, str]) -> None:
    flag, value = f"--{row['flag']}", row["value"]
    chosen = options(f"{flag}={value}")
    assert chosen == options(flag, value)
    changes = {row["option"]: json.loads(row["holds"])} if row["option"] else {}
    silent = msgspec.structs.replace(chosen, warnings=())
    assert silent == msgspec.structs.replace(options(), **changes)
    assert len(chosen.warnings) == (row["fate"] in ("mapped", "ignored"))
    assert all(flag in warning for warning in chosen.warnings)


def test_ports_and_tls_are_by_default_where_charts_expect_them() -> None:
    default = options()
    assert (default.grpc_port, default.grpc_health_port, default.metrics_port) == (9002, 9003, 9090)
    assert default.secure_serving
    assert default.health_checking
    assert default.metrics_endpoint_auth is None
    assert cluster_of(default) is None, "no pool, so no cluster"


def test_the_namespace_is_the_flag_then_the_environment_then_the_clusters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert options("--pool-namespace=mine").pool_namespace == "mine"
    assert options().pool_namespace == os.environ["NAMESPACE"] == "models"
    monkeypatch.delenv("NAMESPACE")
    assert options().pool_namespace == ""


@pytest.mark.parametrize("spelling", [("-v", "4"), ("-v=4",), ("--v=4",), ("--v", "4"), ("-v4",)])
def test_verbosity_in_every_spelling(spelling: tuple[str, ...]) -> None:
    assert options(*spelling).verbosity == 4


# --- where endpoints come from ---------------------------------------------------------


def test_a_list_and_a_file_exclude_each_other() -> None:
    both = ServeOptions(endpoints="127.0.0.1:9", endpoints_file="/endpoints.yaml")
    with pytest.raises(ConfigError, match="--endpoints and an endpoints file"):
        origin_of(both, (), Told(print, RuleBook()))


def test_endpoints_that_are_told_win_over_labels_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told = ServeOptions(endpoints="127.0.0.1:9", endpoint_selector="app=vllm")
    assert isinstance(origin_of(told, (), Told(print, RuleBook())), StaticEndpoints)
    assert "--endpoint-selector is ignored" in caplog.text


def test_metric_flags_win_over_the_configuration_and_leave_its_rest() -> None:
    source = MetricsDataSource(
        MetricsDataSource.Params(scheme="https", path="/a", port=1, interval="2s"), build.tools()
    )
    params = CoreMetricsExtractor.Params(
        default_engine="mine", engine_configs=(EngineConfig(name="mine", kv_usage_spec="usage"),)
    )
    flags = ServeOptions(model_server_metrics_path="/b", kv_cache_usage_percentage_metric="share")
    settings, engines = scraping_of(flags, (source, CoreMetricsExtractor(params)))
    chosen = settings.source
    assert (chosen.scheme, chosen.path, chosen.port) == ("https", "/b", 1)
    assert settings.pace.fast == 2.0
    assert engines.default == "mine"
    plain, _ = scraping_of(ServeOptions(), (source,))
    assert (plain.source.path, plain.pace.fast) == ("/a", 2.0)


def test_messages_are_as_large_as_told(tmp_path: Path) -> None:
    flags = ("--endpoints=127.0.0.1:9", "--secure-serving=false", "--grpc-max-recv-msg-size=1Mi")

    async def send(picker: Served, size: int) -> str:
        async with Gateway(picker.ports["grpc"]) as gateway:
            body = gw.request_body(b"x" * size, ends=True)
            return gw.destination((await gateway.exchange([gw.request_head(), body]))[0])

    with serving(tmp_path, *flags) as picker:
        assert asyncio.run(send(picker, 2**20 - 1000)) == "127.0.0.1:9"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            asyncio.run(send(picker, 2**20 + 1000))
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


# --- what mapped flags do ----------------------------------------------------------


def test_older_flags_say_where_metrics_are_and_what_they_are_called(tmp_path: Path) -> None:
    with metric_pages(2) as (server, exporter):
        server.show(1, 0.1)
        exporter.text = 'my_waiting{of="a"} 7\nmy_running 3\nmy_usage 0.25\n'
        flags = (
            f"--endpoints={server.address}",
            f"--model-server-metrics-port={exporter.port}",
            "--model-server-metrics-path=/stats",
            "--total-queued-requests-metric=my_waiting{of=a}",
            "--total-running-requests-metric=my_running",
            "--kv-cache-usage-percentage-metric=my_usage",
        )
        with serving(tmp_path, *flags) as picker:
            loads_known(picker, [{"queued": 7.0, "running": 3.0, "kv_usage": 0.25}])
        assert set(exporter.asked) == {"/stats"}
        assert server.asked == []


def test_a_metric_flag_that_cannot_be_read_ends_the_start() -> None:
    with pytest.raises(ConfigError, match=r"a flag that names a metric: .*queuedRequestsSpec"):
        scraping_of(ServeOptions(total_queued_requests_metric="{"), ())


def test_metrics_that_ask_for_a_cluster_to_guard_them_are_for_this_machine_only(
    tmp_path: Path,
) -> None:
    flags = ["--host=0.0.0.0", "--endpoints=127.0.0.1:9", "--metrics-endpoint-auth=true"]
    with serving(tmp_path, *LOCAL[1:], *flags, ports=()) as picker:
        assert picker.get("/debug/state")["draining"] is False
        (bound,) = eventually(lambda: listening(picker, "admin"))
        assert bound == "127.0.0.1"
        assert listening(picker, "health") != ["127.0.0.1"]


def listening(picker: Served, port: str) -> list[str]:
    """The addresses at which the port listens, as Linux tells."""
    wanted = f"{picker.ports[port]:04X}"
    found = []
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        address, _, number = line.split()[1].partition(":")
        if number == wanted and line.split()[3] == "0A":
            found.append(".".join(str(byte) for byte in reversed(bytes.fromhex(address))))
    return found


@pytest.mark.parametrize(("told", "used"), [(0.01, 0.05), (0.05, 0.05), (0.3, 0.3)])
def test_an_interval_below_50_ms_is_raised_to_it(told: float, used: float) -> None:
    settings, _ = scraping_of(ServeOptions(refresh_metrics_interval=told), ())
    assert settings.pace.fast == used


@pytest.mark.parametrize(
    ("pool", "pod", "name"),
    [
        ("vllm-pool", "epp-7c9f6d5b8-x2x4z", "vllm-pool"),
        ("", "my-router-epp-7c9f6d5b8-x2x4z", "my-router-epp"),  # the Deployment's
        ("", "epp-0", "epp-0"),
        ("", "", "default"),
    ],
)
def test_the_pools_name_in_metrics_is_the_deployments_where_there_is_no_pool(
    pool: str, pod: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POD_NAME", pod)
    assert pool_label_of(ServeOptions(pool_name=pool)) == name
