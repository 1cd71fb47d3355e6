"""Flags of the sidecar: the Go sidecar's names and defaults, a file of them, the example."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
import yaml

from epp.errors import ConfigError
from epp.sidecar.arguments import add_arguments, options_of, warnings
from epp.sidecar.options import SidecarOptions

ROOT = Path(__file__).resolve().parents[3]


def parsed(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(arguments)


def options(*arguments: str) -> SidecarOptions:
    return options_of(parsed(*arguments))


def test_defaults_are_those_of_the_go_sidecar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("INFERENCE_POOL", raising=False)
    told = options()
    assert (told.port, told.model_server_port, told.data_parallel_size) == (8000, 8200, 1)
    assert (told.kv_connector, told.ec_connector) == ("nixlv2", "")
    assert (told.secure_proxy, told.enable_ssrf_protection) == (True, False)
    assert (told.prefill_max_retries, told.prefill_retry_backoff) == (0, 0.2)
    assert (told.mooncake_bootstrap_port, told.metrics_port) == (8998, 0)
    assert told == SidecarOptions()


def test_flags_of_the_go_sidecar_are_taken() -> None:
    told = options(
        "--vllm-port=9", "--enable-tls=prefiller,decoder", "--prefill-retry-backoff=50ms",
        "--secure-proxy=false", "--enable-prefiller-sampling", "--pool-group=g", "-v=4",
    )  # fmt: skip
    assert (told.model_server_port, told.enable_tls) == (9, ("prefiller", "decoder"))
    assert (told.prefill_retry_backoff, told.secure_proxy) == (0.05, False)
    assert (told.enable_prefiller_sampling, told.pool_group, told.verbosity) == (True, "g", 4)


def test_a_list_that_is_given_in_parts_is_one_list() -> None:
    told = options("--enable-tls", "prefiller", "--enable-tls", "decoder,encoder")
    assert told.enable_tls == ("prefiller", "decoder", "encoder")


def test_sglangs_bootstrap_port_may_be_told_by_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SGLANG_BOOTSTRAP_PORT", "9111")
    assert options("--kv-connector=sglang").mooncake_bootstrap_port == 9111
    assert options("--kv-connector=mooncake").mooncake_bootstrap_port == 8998
    flag = "--mooncake-bootstrap-port=7"
    assert options("--kv-connector=sglang", flag).mooncake_bootstrap_port == 7
    monkeypatch.setenv("SGLANG_BOOTSTRAP_PORT", "x")
    with pytest.raises(ConfigError, match="SGLANG_BOOTSTRAP_PORT"):
        options("--kv-connector=sglang")


def test_flags_that_change_nothing_are_taken_and_said() -> None:
    said = warnings(parsed("--tracing=true", "--decode-chunk-size=0", "--ec-connector=ec-nixl"))
    assert [text.split()[0] for text in said] == [
        "--decode-chunk-size", "--tracing", "--ec-connector"
    ]  # fmt: skip


def test_mori_io_is_not_spoken_and_its_flags_stop_nobody_from_starting() -> None:
    given = ["--moriio-write-mode", "--moriio-local-pod-ip=10.0.0.1", "--moriio-tp-size", "8"]
    said = warnings(parsed(*given, "--moriio-remote-hosts=a,b"))
    assert [text.split(" is ignored: ") for text in said] == [
        [flag, "MoRI-IO is not spoken"]
        for flag in (
            "--moriio-write-mode", "--moriio-local-pod-ip", "--moriio-tp-size",
            "--moriio-remote-hosts",
        )
    ]  # fmt: skip
    assert options("--configuration={moriio-write-mode: true, port: 9}").port == 9


def test_tls_has_the_name_that_the_go_sidecar_gave_it_later() -> None:
    assert options("--secure-serving=false").secure_proxy is False
    assert options("--configuration={secureServing: false}").secure_proxy is False


def test_a_flag_wins_over_the_configuration_and_that_over_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INFERENCE_POOL", "ns/pool")
    file = tmp_path / "c.yaml"
    file.write_text("port: 1\nmodelServerPort: 2\nkvConnector: sglang\nenableTls: [decoder]\n")
    told = options(
        f"--configuration-file={file}", "--configuration={model-server-port: 3, kvLease: 10s}",
        "--kv-connector=mooncake",
    )  # fmt: skip
    assert (told.port, told.model_server_port, told.kv_connector) == (1, 3, "mooncake")
    assert (told.enable_tls, told.kv_lease, told.inference_pool) == (("decoder",), 10.0, "ns/pool")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        pytest.param("{prot: 1}", "prot", id="no flag"),
        pytest.param("{port: x}", "port", id="no port"),
        pytest.param("{kvConnector: rdma}", "rdma", id="no connector"),
        pytest.param("[1]", "--configuration", id="no mapping"),
    ],
)
def test_a_wrong_configuration_is_refused_by_name(text: str, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        options(f"--configuration={text}")


@pytest.mark.parametrize(
    ("told", "named"),
    [
        pytest.param(SidecarOptions(enable_tls=("server",)), "--enable-tls", id="no stage"),
        pytest.param(SidecarOptions(inference_pool="pool"), "NAMESPACE/NAME", id="no namespace"),
        pytest.param(
            SidecarOptions(enable_ssrf_protection=True), "--allowed-prefillers", id="nobody to ask"
        ),
    ],
)
def test_options_that_do_not_go_together_are_refused(told: SidecarOptions, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        told.check()


def test_the_example_for_a_cluster_starts_a_sidecar() -> None:
    documents = list(yaml.safe_load_all((ROOT / "docs/sidecar.yaml").read_text()))
    pod = documents[0]["spec"]["template"]["spec"]
    (sidecar,), (engine,) = pod["initContainers"], pod["containers"]
    told = options(*(each.replace("$(NAMESPACE)", "ns") for each in sidecar["args"]))
    told.check()
    assert sidecar["command"] == ["epp", "sidecar"]
    assert f"--port={told.model_server_port}" in engine["args"]
    assert told.port == sidecar["ports"][0]["containerPort"]
    assert told.drain_timeout < pod["terminationGracePeriodSeconds"]
