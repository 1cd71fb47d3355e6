"""Kubeconfig files: what they may hold, how several are merged, and that no error tells a secret."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path

import pytest

from epp.errors import ConfigError
from epp.kube.identity import kubeconfig
from epp.kube.identity.credentials import Credential
from epp.kube.identity.kubeconfig import Placed

SECRET = "s3cr3t-value"


def write(folder: Path, *, cluster: str = "", user: str = "", name: str = "config") -> str:
    path = folder / name
    path.write_text(
        f"""
apiVersion: v1
kind: Config
preferences: {{}}
current-context: c
clusters:
- name: k
  cluster: {{server: "https://api:6443/", {cluster}}}
users:
- name: u
  user: {{{user}}}
contexts:
- name: c
  context: {{cluster: k, user: u}}
"""
    )
    return str(path)


def shown(placed: Placed) -> Credential:
    return asyncio.run(placed.credentials({}).current())


def data(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def test_a_token_is_shown(tmp_path: Path) -> None:
    placed = kubeconfig.read((write(tmp_path, user="token: abc"),))
    assert placed.server() == "https://api:6443"
    assert placed.namespace() == "default"
    assert placed.proxy() == ""
    assert shown(placed) == Credential("abc")


def test_a_token_file_is_read_from_the_kubeconfigs_folder_and_goes_before_a_token(
    tmp_path: Path,
) -> None:
    (tmp_path / "tok").write_text("from file\n".replace(" ", "-"))
    placed = kubeconfig.read((write(tmp_path, user="tokenFile: tok, token: abc"),))
    assert shown(placed).token == "from-file"


def test_certificates_may_be_files_or_data_and_data_goes_first(tmp_path: Path) -> None:
    user = "client-certificate: crt.pem, client-key: key.pem"
    by_file = shown(kubeconfig.read((write(tmp_path, user=user),)))
    assert by_file.certificate.path == str(tmp_path / "crt.pem")
    assert by_file.key.path == str(tmp_path / "key.pem")
    both = f"{user}, client-certificate-data: {data('C')}, client-key-data: {data('K')}"
    by_data = shown(kubeconfig.read((write(tmp_path, user=both),)))
    assert (by_data.certificate.text, by_data.key.text) == ("C", "K")


def test_the_authority_is_taken_and_checking_may_be_left_out(tmp_path: Path) -> None:
    given = f"certificate-authority-data: {data('CA')}, tls-server-name: kubernetes"
    trust = kubeconfig.read((write(tmp_path, cluster=given),)).trust()
    assert (trust.authority.text, trust.server_name) == ("CA", "kubernetes")
    given = "certificate-authority: ca.pem"
    trust = kubeconfig.read((write(tmp_path, cluster=given),)).trust()
    assert trust.authority.path == str(tmp_path / "ca.pem")
    assert not trust.skip_verify
    given = "insecure-skip-tls-verify: true"
    assert kubeconfig.read((write(tmp_path, cluster=given),)).trust().skip_verify


def test_of_several_files_the_first_to_name_a_thing_wins(tmp_path: Path) -> None:
    other = tmp_path / "sub"
    other.mkdir()
    first = tmp_path / "first"
    first.write_text("users: [{name: u, user: {token: mine}}]")
    second = write(other, cluster="certificate-authority: ca.pem", user="token: theirs")
    placed = kubeconfig.read((str(tmp_path / "missing"), str(first), second))
    assert shown(placed).token == "mine"
    assert placed.trust().authority.path == str(other / "ca.pem")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "no current-context"),
        ("current-context: x", "context 'x' is not defined"),
        (
            "{current-context: x, contexts: [{name: x, context: {cluster: k}}]}",
            "cluster 'k' is not defined",
        ),
        (
            """
            current-context: x
            contexts: [{name: x, context: {cluster: k, user: u}}]
            clusters: [{name: k, cluster: {server: "https://a"}}]
            """,
            "user 'u' is not defined",
        ),
        ("clusters: 3", "Expected `array"),
    ],
)
def test_what_is_missing_is_named(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(ConfigError, match=complaint) as caught:
        kubeconfig.read((str(path),))
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("cluster", "user", "complaint"),
    [
        ("certificate-authority: a, insecure-skip-tls-verify: true", "", "exclude"),
        ("certificate-authority-data: '***'", "", "not base64"),
        ("proxy-url: 'socks5://p'", "", "proxy-url"),
        ("", "client-certificate: a", "go together"),
        ("", "auth-provider: {name: gcp}", "auth-provider is not supported"),
    ],
)
def test_what_cannot_be_used_is_refused(
    tmp_path: Path, cluster: str, user: str, complaint: str
) -> None:
    placed = kubeconfig.read((write(tmp_path, cluster=cluster, user=user),))
    with pytest.raises(ConfigError, match=complaint):
        placed.trust(), placed.proxy(), placed.credentials({})


def test_a_server_must_be_an_address(tmp_path: Path) -> None:
    path = Path(write(tmp_path))
    path.write_text(path.read_text().replace("https://api:6443/", "api:6443"))
    with pytest.raises(ConfigError, match="api:6443"):
        kubeconfig.read((str(path),)).server()


@pytest.mark.parametrize(
    "text", [f"token: {SECRET}: [", f"users: [{{name: u, user: {{token: [{SECRET}]}}}}]"]
)
def test_no_error_quotes_the_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        kubeconfig.read((str(path),))
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None


def test_no_credential_shows_in_a_repr(tmp_path: Path) -> None:
    user = (
        f"token: {SECRET}, client-certificate-data: {data(SECRET)}, client-key-data: {data(SECRET)}"
    )
    placed = kubeconfig.read((write(tmp_path, user=user),))
    said = (
        repr(placed) + repr(shown(placed)) + repr(shown(placed).key) + repr(placed.credentials({}))
    )
    assert SECRET not in said
    assert data(SECRET) not in said
