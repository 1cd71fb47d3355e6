"""Where the cluster is looked for, and what is found."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from epp.errors import ConfigError
from epp.kube.access import find_access

IN_POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "6443"}


def kubeconfig(path: Path, server: str = "https://one:6443") -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        f"""
        current-context: c
        clusters: [{{name: k, cluster: {{server: "{server}"}}}}]
        users: [{{name: u, user: {{token: t}}}}]
        contexts: [{{name: c, context: {{cluster: k, user: u, namespace: team}}}}]
        """
    )
    return str(path)


@pytest.fixture
def account(tmp_path: Path) -> Path:
    folder = tmp_path / "serviceaccount"
    folder.mkdir()
    (folder / "token").write_text("first\n")
    (folder / "ca.crt").write_text("PEM")
    (folder / "namespace").write_text("serving\n")
    return folder


def test_a_pod_finds_its_service_account(account: Path) -> None:
    access = find_access(environment=IN_POD, service_account=account)
    assert access.server == "https://10.0.0.1:6443"
    assert access.namespace == "serving"
    assert access.trust.authority.path == str(account / "ca.crt")
    assert not access.trust.skip_verify
    assert asyncio.run(access.credentials.current()).token == "first"


def test_a_rotated_token_is_used_from_the_next_request_on(account: Path) -> None:
    access = find_access(environment=IN_POD, service_account=account)
    assert asyncio.run(access.credentials.current()).token == "first"
    fresh = account / "token.new"
    fresh.write_text("second")
    fresh.replace(account / "token")
    assert asyncio.run(access.credentials.current()).token == "second"


def test_a_service_on_ipv6_is_written_in_brackets(account: Path) -> None:
    environment = {"KUBERNETES_SERVICE_HOST": "fd00::1"}
    access = find_access(environment=environment, service_account=account)
    assert access.server == "https://[fd00::1]:443"


def test_b163_without_a_namespace_file_the_namespace_is_default(account: Path) -> None:
    (account / "namespace").unlink()
    access = find_access(environment=IN_POD, service_account=account)
    assert access.namespace == "default"


@pytest.mark.parametrize("lost", ["token", "ca.crt"])
def test_a_pod_without_its_service_account_is_told_why(account: Path, lost: str) -> None:
    (account / lost).unlink()
    with pytest.raises(ConfigError, match=rf"{lost}.*automountServiceAccountToken"):
        find_access(environment=IN_POD, service_account=account)


def test_the_argument_goes_before_the_variable_and_that_before_the_pod(
    tmp_path: Path, account: Path
) -> None:
    argument = kubeconfig(tmp_path / "a", "https://argument")
    variable = kubeconfig(tmp_path / "b", "https://variable")
    kubeconfig(tmp_path / ".kube" / "config", "https://home")
    home = {"HOME": str(tmp_path)}
    every = {**home, **IN_POD, "KUBECONFIG": variable}
    places = [
        (argument, every, "https://argument"),
        ("", every, "https://variable"),
        ("", {**home, **IN_POD}, "https://10.0.0.1:6443"),
        ("", home, "https://home"),
    ]
    for path, environment, expected in places:
        found = find_access(path, environment=environment, service_account=account)
        assert found.server == expected


def test_without_a_cluster_the_error_names_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        find_access(environment={"HOME": str(tmp_path)})
    for place in ("--kubeconfig", "KUBECONFIG", "KUBERNETES_SERVICE_HOST", str(tmp_path)):
        assert place in str(caught.value)


def test_a_kubeconfig_that_is_named_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        find_access(str(tmp_path / "none"), environment=IN_POD)


def test_a_port_that_is_none_is_refused(account: Path) -> None:
    environment = {**IN_POD, "KUBERNETES_SERVICE_PORT": "tcp://10.0.0.1:443"}
    with pytest.raises(ConfigError, match="KUBERNETES_SERVICE_PORT"):
        find_access(environment=environment, service_account=account)
