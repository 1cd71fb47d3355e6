"""Tokens that are renewed under us, and plugins that print them."""

from __future__ import annotations

import asyncio
import json
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from epp.kube.errors import KubeError
from epp.kube.identity.credentials import Credential, TokenFile
from epp.kube.identity.exec_plugin import Exec, ExecPlugin, Variable

SECRET = "s3cr3t-value"
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def current(credentials: TokenFile | ExecPlugin) -> Credential:
    return asyncio.run(credentials.current())


def test_a_token_file_that_is_gone_for_a_moment_leaves_the_last_token(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("one")
    file = TokenFile(str(path))
    assert current(file).token == "one"
    path.unlink()
    assert current(file).token == "one"
    path.write_text("")
    assert current(file).token == "one"
    path.write_text("two")
    assert current(file).token == "two"


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe", f"{SECRET} {SECRET}".encode()])
def test_a_token_file_that_never_was_good_is_an_error_without_its_content(
    tmp_path: Path, content: bytes | None
) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(KubeError, match=str(path)) as caught:
        current(TokenFile(str(path)))
    assert caught.value.reason == "credentials"
    assert caught.value.status == 0
    assert SECRET not in str(caught.value)


class Script:
    """A plugin in a shell script that counts its runs."""

    def __init__(self, folder: Path, body: str) -> None:
        self.folder = folder
        self.path = folder / "plugin.sh"
        self.path.write_text(f"#!/bin/sh\necho run >> {folder}/runs\n{body}\n")
        self.path.chmod(0o755)

    @property
    def runs(self) -> int:
        return len((self.folder / "runs").read_text().split())


def printing(folder: Path, **status: str) -> Script:
    answer = {"apiVersion": "client.authentication.k8s.io/v1", "status": status}
    return Script(folder, f"cat <<'END'\n{json.dumps(answer)}\nEND")


def plugin(script: Script, **options: object) -> ExecPlugin:
    return ExecPlugin(Exec("./plugin.sh"), script.folder, {"PATH": "/usr/bin:/bin"}, **options)


def test_a_plugin_is_run_once_and_its_token_kept(tmp_path: Path) -> None:
    script = printing(tmp_path, token="abc")

    async def scenario() -> None:
        credentials = plugin(script)
        every = await asyncio.gather(*(credentials.current() for _ in range(5)))
        assert {each.token for each in every} == {"abc"}

    asyncio.run(scenario())
    assert script.runs == 1


def test_a_plugin_is_run_again_shortly_before_its_token_expires(tmp_path: Path) -> None:
    script = printing(tmp_path, token="abc", expirationTimestamp="2026-01-01T13:00:00Z")
    now = NOON

    async def scenario() -> None:
        nonlocal now
        credentials = plugin(script, now=lambda: now)
        await credentials.current()
        now = NOON + timedelta(minutes=59, seconds=29)
        await credentials.current()
        assert script.runs == 1
        now = NOON + timedelta(minutes=59, seconds=31)
        await credentials.current()
        assert script.runs == 2

    asyncio.run(scenario())


def test_a_plugin_is_run_again_when_its_token_was_refused(tmp_path: Path) -> None:
    script = printing(tmp_path, token="abc")

    async def scenario() -> None:
        credentials = plugin(script)
        first = await credentials.current()
        credentials.refuse(Credential("an older one"))
        await credentials.current()
        assert script.runs == 1
        credentials.refuse(first)
        await credentials.current()
        assert script.runs == 2

    asyncio.run(scenario())


def test_a_plugin_may_print_a_certificate(tmp_path: Path) -> None:
    script = printing(tmp_path, clientCertificateData="C", clientKeyData="K")
    shown = current(plugin(script))
    assert (shown.token, shown.certificate.text, shown.key.text) == ("", "C", "K")


def test_a_plugin_gets_its_arguments_its_variables_and_what_is_asked(tmp_path: Path) -> None:
    body = """
    printf '{"status": {"token": "%s-%s-%s-%s"}}' "$1" "$MINE" "$HERITAGE" \
      "$(echo "$KUBERNETES_EXEC_INFO" | tr -dc a-z0-9)"
    """
    Script(tmp_path, body)
    settings = Exec("./plugin.sh", args=["get"], env=[Variable("MINE", "m")])
    environment = {"PATH": "/usr/bin:/bin", "HERITAGE": "h"}
    token = current(ExecPlugin(settings, tmp_path, environment)).token
    assert token.startswith("get-m-h-")
    assert "clientauthenticationk8siov1" in token
    assert "interactivefalse" in token


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (f"echo {SECRET} >&2; exit 3", "ended with 3"),
        (f"echo {SECRET}", "printed no ExecCredential"),
        ("echo '{\"status\": {}}'", "neither a token nor"),
        (f'printf \'{{"status": {{"token": "{SECRET}\\\\nx"}}}}\'', "characters that no token has"),
    ],
)
def test_a_plugin_that_fails_is_an_error_without_what_it_printed(
    tmp_path: Path, body: str, complaint: str
) -> None:
    with pytest.raises(KubeError, match=complaint) as caught:
        current(plugin(Script(tmp_path, body)))
    assert SECRET not in str(caught.value)
    assert caught.value.reason == "credentials"


def test_a_plugin_that_is_not_there_says_how_to_get_it(tmp_path: Path) -> None:
    settings = Exec("./none", install_hint="Install it from example.org.")
    with pytest.raises(KubeError, match=r"cannot be run: .*Install it from example\.org"):
        current(ExecPlugin(settings, tmp_path, {}))


def test_a_plugin_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    script = Script(tmp_path, f"(sleep 2; touch {tmp_path}/alive) &\nsleep 60")
    began = time.monotonic()
    with pytest.raises(KubeError, match=r"nothing within 0\.3 s"):
        current(plugin(script, seconds=0.3))
    assert time.monotonic() - began < 1.5
    time.sleep(2.2)
    assert not (tmp_path / "alive").exists()
