"""How `epp top` and `epp explain` ask a metrics port that is guarded."""

from __future__ import annotations

import http.server
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from epp import cli
from epp.commands import asking
from epp.commands.asking import Admin
from epp.errors import ConfigError
from tests.support.certificates import Authority
from tests.unit.commands.test_top import answer

PICKER = msgspec.json.encode(answer())
TOKEN = "good"


class Guard(http.server.BaseHTTPRequestHandler):
    """Answers `PICKER` to whoever shows `TOKEN`; sends ``/away`` to another place."""

    def do_GET(self) -> None:
        shown = self.headers.get("Authorization")
        self.server.shown.append(shown)  # type: ignore[attr-defined]
        status = 200 if shown == f"Bearer {TOKEN}" else 403 if shown else 401
        if self.path.startswith("/away"):
            status = 302
        self.send_response(status)
        if status == 302:
            self.send_header("Location", "/debug/live")
        self.end_headers()
        self.wfile.write(PICKER if status == 200 else b"no")

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def guarded(context: ssl.SSLContext | None = None) -> Iterator[tuple[str, list[str | None]]]:
    """Serve; yields the address and the ``Authorization`` headers that came."""
    server = http.server.HTTPServer(("127.0.0.1", 0), Guard)
    server.shown = []  # type: ignore[attr-defined]
    server.handle_error = lambda *_: None  # type: ignore[method-assign] - a failed handshake
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}", server.shown  # type: ignore[attr-defined]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def token_file(tmp_path: Path) -> str:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    return str(path)


@pytest.mark.parametrize("trust", ["--ca-file", "--insecure"])
def test_a_guarded_port_with_tls_is_read(
    trust: str, tmp_path: Path, token_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    authority = Authority(tmp_path)
    known = [f"--ca-file={authority.path}"] if trust == "--ca-file" else ["--insecure"]
    with guarded(authority.server_context()) as (address, _):
        url = f"--admin=https://{address}/"
        assert cli.main(["top", "--once", url, *known, f"--token-file={token_file}"]) == 0
    assert "pool llama" in capsys.readouterr().out


def test_a_port_that_wants_a_certificate_is_shown_one(tmp_path: Path, token_file: str) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("reader")
    with guarded(authority.server_context(mutual=True)) as (address, _):
        admin = Admin(
            url=f"https://{address}",
            ca_file=str(authority.path),
            token_file=token_file,
            cert_file=str(certificate),
            key_file=str(key),
        )
        assert asking.ask(admin, "/debug/live", seconds=3) == PICKER
        bare = msgspec.structs.replace(admin, cert_file="", key_file="")
        with pytest.raises(ConfigError, match="cannot ask https://"):
            asking.ask(bare, "/debug/live", seconds=3)


def test_a_picker_whose_certificate_nobody_known_signed_gets_no_token(
    tmp_path: Path, token_file: str
) -> None:
    authority = Authority(tmp_path)
    with guarded(authority.server_context()) as (address, shown):
        admin = Admin(url=f"https://{address}", token_file=token_file)
        with pytest.raises(ConfigError, match=r"certificate verify failed"):
            asking.ask(admin, "/debug/live", seconds=3)
    assert shown == []


def test_a_token_goes_over_plain_http_to_this_machine_only(token_file: str) -> None:
    with guarded() as (address, _):
        admin = Admin(url=f"http://{address}", token_file=token_file)
        assert asking.ask(admin, "/debug/live", seconds=3) == PICKER
    far = Admin(url="http://10.0.0.7:9090", token_file=token_file)
    with pytest.raises(ConfigError, match="is not https, so anybody could read the token"):
        asking.ask(far, "/debug/live", seconds=3)


def test_a_token_does_not_follow_a_redirect(token_file: str) -> None:
    with guarded() as (address, shown):
        admin = Admin(url=f"http://{address}", token_file=token_file)
        with pytest.raises(ConfigError, match="answered 302"):
            asking.ask(admin, "/away", seconds=3)
    assert len(shown) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [(None, "it wants a --token-file"), ("other", "the token may not read it")],
    ids=["none", "of somebody else"],
)
def test_a_reader_without_a_right_is_told_what_is_missing(
    text: str | None, said: str, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text(text or "")
    with guarded() as (address, _):
        admin = Admin(url=address, token_file=str(tmp_path / "token") if text else "")
        with pytest.raises(ConfigError, match=said):
            asking.ask(admin, "/debug/live", seconds=3)


@pytest.mark.parametrize("text", ["", "two words", "line\nbreak", "caf\xe9"])
def test_a_file_without_a_token_is_said(text: str, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(text)
    with pytest.raises(ConfigError, match="holds no token"):
        asking.ask(Admin(url="127.0.0.1:1", token_file=str(path)), "/", seconds=1)


@pytest.mark.parametrize("flag", ["--token-file", "--ca-file", "--cert-file"])
def test_a_file_that_is_not_there_is_said(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["explain", "r", "--admin=https://127.0.0.1:1", f"{flag}=/does/not/exist"]
    assert cli.main(arguments) == 2
    assert "cannot read" in capsys.readouterr().err


def test_a_key_without_a_certificate_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["top", "--once", "--key-file=key.pem"]) == 2
    assert "--cert-file is missing" in capsys.readouterr().err
