"""``epp top`` against something that answers like a picker, or does not."""

from __future__ import annotations

import http.server
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice

import msgspec
import pytest

from epp import cli
from tests.unit.commands.test_top import answer

PICKER = msgspec.json.encode(answer())
WAIT_SECONDS = 30.0


@contextmanager
def serving(body: bytes, status: int = 200, asked: list[str] | None = None) -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            (asked if asked is not None else []).append(self.path)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def followed(body: bytes, status: int) -> tuple[list[str], int, str]:
    """Run it until it asked three times, then interrupt it."""
    asked: list[str] = []
    with serving(body, status, asked) as address:
        command = [sys.executable, "-m", "epp", "top", f"--admin={address}"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            deadline = time.monotonic() + WAIT_SECONDS
            while len(asked) < 3 and time.monotonic() < deadline:
                time.sleep(0.02)
            child.send_signal(signal.SIGINT)
            out, _ = child.communicate(timeout=WAIT_SECONDS)
    return asked, child.returncode, out


def test_it_goes_on_asking_until_interrupted() -> None:
    asked, status, out = followed(PICKER, 200)
    assert asked[:3] == ["/debug/live"] * 3
    assert status == 0
    assert "pod-1" in out


def test_a_reader_that_has_seen_enough_ends_it_at_once_and_quietly() -> None:
    seldom = (
        "import sys; from epp import cli; from epp.commands import top; "
        "top.PERIOD_SECONDS = 600.0; sys.exit(cli.main(sys.argv[1:]))"
    )
    with serving(PICKER) as address:
        command = [sys.executable, "-c", seldom, "top", f"--admin={address}"]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as child:
            assert child.stdout is not None
            assert child.stderr is not None
            try:
                assert select.select([child.stdout], [], [], WAIT_SECONDS)[0], "nothing is written"
                assert child.stdout.readline().startswith("pool llama")
                child.stdout.close()
                assert child.wait(WAIT_SECONDS) == 0
                assert child.stderr.read() == ""
            finally:
                child.kill()


def test_each_second_all_pods_are_written_for_another_program() -> None:
    with serving(PICKER) as address:
        command = [sys.executable, "-m", "epp", "top", f"--admin={address}"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            try:
                heads = [line for line in islice(child.stdout, 30) if "pool llama" in line]
                assert len(heads) >= 2
            finally:
                child.kill()


def test_it_goes_on_when_the_picker_does_not_answer_and_says_so() -> None:
    asked, status, out = followed(b"starting", 503)
    assert len(asked) >= 3
    assert status == 0
    assert "answered 503: is it a picker?" in out


def test_once_prints_all_pods_and_ends(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(PICKER) as address:
        assert cli.main(["top", "--once", f"--admin={address}"]) == 0
    out = capsys.readouterr().out
    assert "pool llama" in out
    assert "pod-0" in out
    assert "pod-1" in out
    assert "\x1b" not in out  # no colours where nobody sees them


def test_a_pool_of_many_is_asked_for_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[str] = []
    with serving(PICKER, asked=asked) as address:
        assert cli.main(["top", "--once", "--pool=a&b", f"--admin={address}"]) == 0
    assert asked == ["/debug/live?pool=a%26b"]
    assert "pool llama" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"not found", 404, "answered 404: is it a picker?"),
        (b"<html>", 200, "/debug/live is not as a picker has it"),
        (b"{}", 200, "/debug/live is not as a picker has it"),
        (b"Unauthorized", 401, "answered 401: it wants a --token-file"),
    ],
    ids=["another server", "no JSON", "another object", "guarded"],
)
@pytest.mark.parametrize("once", [["--once"], []], ids=["once", "each second"])
def test_an_answer_that_is_not_a_pickers_ends_it_with_one_line(
    body: bytes, status: int, said: str, once: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(body, status) as address:
        assert cli.main(["top", *once, f"--admin={address}"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"epp top: http://{address}")
    assert said in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("once", [["--once"], []], ids=["once", "each second"])
@pytest.mark.parametrize(
    ("admin", "said"),
    [
        ("127.0.0.1:1", "cannot ask http://127.0.0.1:1: [Errno 111] Connection refused"),
        ("file:///etc", "'file:///etc' is no http:// or https:// address"),
        ("http://", "is no http"),
        ("http://host:port", "is no http"),
        ("http://a b", "is no http"),
        ("http://[::1", "is no http"),
        ("http://127.0.0.1:9090/?x=1", "is no http"),
    ],
)
def test_an_address_where_no_picker_can_be_ends_it_with_one_line(
    admin: str, said: str, once: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["top", *once, f"--admin={admin}"]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
