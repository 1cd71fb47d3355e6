"""The command line: what flags become. Out: what the verbs do."""

from __future__ import annotations

import logging
import sys
import types

import pytest

from epp.cli import _kebab, _parser, main, serve_options
from epp.errors import ConfigError
from epp.serve.options import ServeOptions
from epp.serve.tracing import tracing_of
from epp.telemetry.log import level_of
from epp.terminal.go_flags import IGNORED


def options(*flags: str) -> ServeOptions:
    return serve_options(_parser().parse_args(["serve", *_kebab(list(flags))]))


def test_without_flags_everything_is_the_default() -> None:
    assert options() == ServeOptions()


def test_flags_as_the_go_picker_takes_them() -> None:
    chosen = options(
        "--grpc-port=19002", "--grpc-health-port", "19003", "--secure-serving=false",
        "--refresh-metrics-interval=200ms", "--drain-timeout=1m30s", "-v=4",
        "--grpc-max-recv-msg-size=64Mi", "--emit-endpoint-scores", "--zap-encoder=console",
        "--endpoints=10.0.0.1:8000",
    )  # fmt: skip
    assert (chosen.grpc_port, chosen.grpc_health_port) == (19002, 19003)
    assert chosen.secure_serving is False
    assert chosen.refresh_metrics_interval == pytest.approx(0.2)
    assert chosen.drain_timeout == pytest.approx(90.0)
    assert (chosen.verbosity, chosen.log_format) == (4, "console")
    assert chosen.grpc_max_recv_msg_size == 64 * 2**20
    assert chosen.emit_endpoint_scores is True
    assert chosen.endpoints == "10.0.0.1:8000"
    assert chosen.warnings == ()


@pytest.mark.parametrize("flag", sorted(IGNORED))
def test_flags_that_change_nothing_are_accepted_with_a_warning(flag: str) -> None:
    (warning,) = options(f"--{flag}=1s").warnings
    assert warning.startswith(f"--{flag} is accepted and ignored: ")


def test_the_spelling_of_the_first_pickers() -> None:
    assert options("-poolName", "vllm-pool", "-grpcPort=9100").pool_name == "vllm-pool"


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param(["--grpc-port=70000"], id="port out of range"),
        pytest.param(["--drain-timeout=30"], id="duration without a unit"),
        pytest.param(["--secure-serving=maybe"], id="not a boolean"),
        pytest.param(["--no-such-flag"], id="unknown flag"),
    ],
)
def test_bad_flags_end_with_status_2_and_one_line(
    flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["serve", *flags])
    assert ended.value.code == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_flags_alone_mean_serve(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--grpc-port=x"])
    assert "epp serve: " in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["gateway", "--listen-port=-4"],
        ["gateway", "--picker-port=999999"],
        ["engine", "--port=99999"],
        ["engine", "--port=-1"],
    ],
    ids=" ".join,
)
def test_ports_of_every_verb_are_ports(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "is not a port (0 to 65535)" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--max-body-bytes", "--max-buffered-bytes"])
def test_a_limit_of_no_bytes_is_refused(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["serve", "--endpoints=127.0.0.1:1", f"{flag}=0"])
    assert ended.value.code == 2
    assert "at least 1 byte" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("level", "shown"),
    [
        ("debug", logging.DEBUG), ("5", logging.DEBUG), ("info", logging.INFO),
        ("2", logging.INFO), ("warn", logging.WARNING), ("error", logging.ERROR),
        ("panic", logging.ERROR), ("fatal", logging.ERROR),
    ],
)  # fmt: skip
def test_a_level_of_zap_shows_what_it_did_there(level: str, shown: int) -> None:
    assert level_of(options(f"--zap-log-level={level}").verbosity) == shown


def test_a_module_of_an_extra_that_is_missing_is_named_with_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(arguments: list[str]) -> int:
        raise ModuleNotFoundError("No module named 'zmq.utils'", name="zmq.utils")

    monkeypatch.setattr("epp.cli._run", missing)
    assert main(["bench"]) == 2
    assert "epp bench: this needs the module 'zmq.utils': pip install '.[precise]'" in (
        capsys.readouterr().err
    )


def test_a_missing_module_of_our_own_is_a_bug_and_shown_as_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(arguments: list[str]) -> int:
        raise ModuleNotFoundError("No module named 'epp.gone'", name="epp.gone")

    monkeypatch.setattr("epp.cli._run", missing)
    with pytest.raises(ModuleNotFoundError):
        main(["bench"])


def test_tracing_without_its_extra_says_so_though_others_bring_a_part_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Envoy's messages come with a package ``opentelemetry`` that cannot trace."""
    monkeypatch.setitem(sys.modules, "epp.telemetry.tracing", types.ModuleType("empty"))
    with pytest.raises(ConfigError, match=r"pip install '\.\[tracing\]'"):
        tracing_of(True, {})
