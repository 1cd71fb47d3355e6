"""What ``epp`` does where its standard output or error is closed or full."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import msgspec
import pytest

from epp.local.fleet import free_port
from tests.integration.test_top import PICKER, serving
from tests.support.process import eventually

CONFIG = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"
SECONDS = 60.0
NOWHERE = {
    "stdout full": ">/dev/full",
    "all closed": "<&- >&- 2>&-",
}


def page(port: int) -> str:
    """The health page; "" while there is none."""
    with (
        contextlib.suppress(OSError),
        urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5) as got,
    ):
        return str(got.read().decode())
    return ""


def shell(command: str, where: str) -> list[str]:
    return [
        "/bin/sh",
        "-c",
        f'exec "$@" {where}',
        "sh",
        sys.executable,
        "-m",
        "epp",
        *command.split(),
    ]


@pytest.mark.parametrize("where", NOWHERE.values(), ids=NOWHERE)
def test_a_picker_serves_though_nobody_reads_what_it_prints(where: str, tmp_path: Path) -> None:
    port = free_port()
    flags = f"serve --endpoints=127.0.0.1:1 --host=127.0.0.1 --grpc-port=0 --grpc-health-port=0 --metrics-port={port}"
    with subprocess.Popen(shell(flags, where), stderr=subprocess.PIPE) as child:
        try:
            assert eventually(lambda: page(port), SECONDS, "the picker's page") == "ok\n"
            child.send_signal(signal.SIGTERM)
            _, error = child.communicate(timeout=SECONDS)
        finally:
            child.kill()
    assert child.returncode == 0, error
    assert b"Traceback" not in error


@pytest.mark.parametrize(
    ("verb", "where"), [("check", ">/dev/full"), ("gateway", ">/dev/full 2>/dev/full")]
)
def test_a_tool_that_cannot_write_its_answer_says_so(verb: str, where: str, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG)
    command = f"check {config}" if verb == "check" else verb
    done = subprocess.run(
        shell(command, where), stderr=subprocess.PIPE, timeout=SECONDS, check=False
    )
    assert done.returncode == 2
    lines = done.stderr.decode().splitlines()
    assert lines == ([] if "2>" in where else [f"epp {verb}: [Errno 28] No space left on device"])


def test_a_tool_whose_output_is_closed_still_has_a_status(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text(CONFIG)
    bad.write_text("kind: Nothing\n")
    for command, status in {f"check {good}": 0, f"check {bad}": 1, "gateway": 0}.items():
        done = subprocess.run(
            shell(command, ">&-"), stderr=subprocess.PIPE, timeout=SECONDS, check=False
        )
        assert (done.returncode, done.stderr) == (status, b"")


def unread(command: str) -> tuple[int, bytes]:
    """Run a tool whose reader has gone; return its status and what it complained of.

    Python buffers what goes to a pipe, unless told not to.
    """
    reader, writer = os.pipe()
    os.close(reader)
    usual = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with os.fdopen(writer, "wb") as pipe:
        done = subprocess.run(
            shell(command, ""),
            stdout=pipe,
            stderr=subprocess.PIPE,
            env=usual,
            timeout=SECONDS,
            check=False,
        )
    return done.returncode, done.stderr


@pytest.mark.parametrize("command", ["gateway", "--help", "--version", "serve --help"])
def test_a_reader_that_has_seen_enough_is_no_error(command: str) -> None:
    assert unread(command) == (0, b"")


def test_a_reader_of_tables_that_has_seen_enough_is_no_error() -> None:
    with serving(PICKER) as address:
        assert unread(f"top --once --admin={address}") == (0, b"")


def test_the_line_of_ports_is_whole_for_who_reads_it() -> None:
    flags = "serve --endpoints=127.0.0.1:1 --host=127.0.0.1 --grpc-port=0 --grpc-health-port=0 --metrics-port=0"
    with subprocess.Popen(
        shell(flags, ""), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as child:
        try:
            assert child.stdout is not None
            ports = msgspec.json.decode(child.stdout.readline(), type=dict[str, int])
            child.stdout.close()  # a reader that goes does not end it
            assert eventually(lambda: page(ports["admin"]), SECONDS, "its page") == "ok\n"
            child.send_signal(signal.SIGTERM)
            child.wait(SECONDS)
        finally:
            child.kill()
            child.communicate()
    assert child.returncode == 0
