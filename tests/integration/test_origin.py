"""Which flags make which source of endpoints."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from epp.collect.kube.cluster import Cluster
from epp.errors import ConfigError
from epp.rules import RuleBook
from epp.serve.options import ServeOptions
from epp.serve.origin import NoOrigin, Told, leadership_of, origin_of

TOLD = Told(print, RuleBook())


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "NAMESPACE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    path = tmp_path / "kubeconfig"
    path.write_bytes(msgspec.json.encode({
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {}}],
    }))  # fmt: skip
    monkeypatch.setenv("KUBECONFIG", str(path))
    return str(path)


@pytest.mark.parametrize(
    "options",
    [
        ServeOptions(pool_name="pool"),
        ServeOptions(endpoint_selector="a=b", endpoint_target_ports="8000,8001"),
    ],
)
@pytest.mark.usefixtures("cluster")
def test_a_pool_or_labels_are_followed_in_a_cluster(options: ServeOptions) -> None:
    assert isinstance(origin_of(options, (), TOLD), Cluster)


def test_without_a_cluster_the_picker_lives_and_has_no_origin() -> None:
    options = ServeOptions(pool_name="pool", ha_enable_leader_election=True)
    assert isinstance(origin_of(options, (), TOLD), NoOrigin)
    assert leadership_of(options) is None


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (ServeOptions(endpoint_selector="a=b"), "--endpoint-target-ports"),
        (ServeOptions(endpoint_selector="a=b", endpoint_target_ports="x"), "'x'"),
        (
            ServeOptions(pool_name="p", endpoint_selector="a=b", endpoint_target_ports="1"),
            "--pool-name and --endpoint-selector",
        ),
        (ServeOptions(pool_name="p", kubeconfig="/does/not/exist"), "/does/not/exist"),
        (ServeOptions(), "--pool-name"),
    ],
)
@pytest.mark.usefixtures("cluster")
def test_what_cannot_be_meant_is_named(options: ServeOptions, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        origin_of(options, (), TOLD)


@pytest.mark.usefixtures("cluster")
def test_leadership_is_asked_for_by_its_flag() -> None:
    assert leadership_of(ServeOptions(pool_name="p")) is None
    asked = leadership_of(ServeOptions(pool_name="p", ha_enable_leader_election=True))
    assert asked is not None
    assert not asked.ready
