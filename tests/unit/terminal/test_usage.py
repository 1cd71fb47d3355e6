"""What ``epp --help`` says of defaults, and what is said of a flag that does not exist."""

from __future__ import annotations

import subprocess
import sys

import pytest

from epp.cli import main


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[object, str]:
    """The exit status, and what was written, on one line."""
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    out, err = capsys.readouterr()
    return ended.value.code, " ".join((out + err).split())


@pytest.fixture
def serve_help(capsys: pytest.CaptureFixture[str]) -> str:
    status, text = told(capsys, "serve", "--help")
    assert status == 0
    return text


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("--drain-timeout DURATION grace at SIGTERM (default: 30s)", id="seconds"),
        pytest.param("knows at once (default: 200ms)", id="parts of a second"),
        pytest.param("--max-body-bytes SIZE 413 beyond (default: 32Mi)", id="sizes"),
        pytest.param("--grpc-port PORT ext_proc (default: 9002)", id="ports"),
        pytest.param("self-signed without --cert-path (default: true)", id="booleans"),
    ],
)
def test_a_default_is_told_as_it_would_be_typed(serve_help: str, line: str) -> None:
    assert line in serve_help


def test_a_list_is_told_with_commas(capsys: pytest.CaptureFixture[str]) -> None:
    assert "the first labels the metrics (default: sim)" in told(capsys, "engine", "--help")[1]


@pytest.mark.parametrize("nothing", ["(default: )", "None", "False", "[]", "()"])
def test_no_default_is_told_where_nothing_is_set(serve_help: str, nothing: str) -> None:
    assert nothing not in serve_help


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param(
            ["serve", "--endpionts=10.0.0.1:8000"],
            "epp serve: unknown argument --endpionts=10.0.0.1:8000; did you mean --endpoints? "
            "(see epp serve --help)",
            id="a flag like it",
        ),
        pytest.param(
            ["top", "--frobnicate"],
            "epp top: unknown argument --frobnicate (see epp top --help)",
            id="none like it",
        ),
        pytest.param(
            ["explain", "r-1", "r-2"],
            "epp explain: unknown argument r-2 (see epp explain --help)",
            id="one too many",
        ),
        pytest.param(
            ["serve", "--zap-deval=true"],
            "epp serve: unknown argument --zap-deval=true (see epp serve --help)",
            id="flags that are not shown are not offered",
        ),
    ],
)
def test_what_is_unknown_is_named_with_the_flag_that_is_most_like_it(
    capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert told(capsys, *arguments) == (2, said)


def test_a_flag_is_not_guessed_from_its_beginning(capsys: pytest.CaptureFixture[str]) -> None:
    status, text = told(capsys, "top", "--adm=http://127.0.0.1:9090")
    assert (status, "did you mean --admin?" in text) == (2, True)


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "epp", "gateway"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as printing:
        assert printing.stdout is not None
        assert printing.stderr is not None
        printing.stdout.close()  # before anything is printed
        assert printing.stderr.read() == b""
        assert printing.wait(timeout=60) == 0


@pytest.mark.parametrize(
    ("number", "why"),
    [
        pytest.param("0", "'0' is not a number from 1 to 999999", id="none"),
        pytest.param("-1", "'-1' is not a number", id="fewer than none"),
        pytest.param("many", "'many' is not a number", id="no number"),
    ],
)
@pytest.mark.parametrize("flag", ["--engines", "--sessions"])
def test_a_demo_of_nothing_is_refused(
    capsys: pytest.CaptureFixture[str], flag: str, number: str, why: str
) -> None:
    status, text = told(capsys, "demo", f"{flag}={number}")
    assert (status, f"argument {flag}: {why}" in text) == (2, True)
