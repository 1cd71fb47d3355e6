"""Which pool a gateway means by a name."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.errors import NoPool, UnknownPool
from epp.extproc.hints import Hints
from epp.lanes.names import Names

NAMES = Names("models", ["chat", "code", "a" * 60])
LONG = "a" * 60
#: The first 8 hexadecimal digits of SHA-256 of the name, by sha256sum.
CHAT_HASH, LONG_HASH = "31e06f7d", "11ee3912"

DNS = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,20}[a-z0-9])?", fullmatch=True)


def told(*names: str) -> Hints:
    return Hints(told=names)


def clusters(*names: str) -> Hints:
    return Hints(clusters=names)


@pytest.mark.parametrize(
    ("cluster", "pool"),
    [
        ("chat", "chat"),
        ("models/code", "code"),
        (f"outbound|54321||chat-ip-{CHAT_HASH}.models.svc.cluster.local", "chat"),
        (f"outbound|54321||{'a' * 51}-ip-{LONG_HASH}.models.svc.cluster.local", LONG),
        ("outbound|8000||code.models.svc.cluster.local", "code"),
        ("endpointpicker_chat_models_original_dst", "chat"),
        ("envoy.clusters.endpointpicker_code_models_original_dst", "code"),
        ("inferencepool_models_chat_8000", "chat"),
        ("kube_models_code-svc_8000", "code"),
    ],
)
def test_a_cluster_that_a_gateway_made_for_a_pool_means_that_pool(cluster: str, pool: str) -> None:
    assert NAMES.find(clusters(cluster)) == pool
    assert NAMES.find(clusters(cluster)) == pool  # remembered


@pytest.mark.parametrize(
    "cluster",
    [
        "chatty",
        "other/chat",
        "outbound|54321||chat-ip-00000000.models.svc.cluster.local",
        f"outbound|54321||chat-ip-{CHAT_HASH}.others.svc.cluster.local",
        "endpointpicker_chat_others_original_dst",
        "httproute/models/chat/rule/0",
    ],
)
def test_a_cluster_of_something_else_means_no_pool(cluster: str) -> None:
    with pytest.raises(UnknownPool, match="serves no pool of that name"):
        NAMES.find(clusters(cluster))


def test_a_pool_that_is_told_counts_before_the_names_of_cluster_and_route() -> None:
    assert NAMES.find(Hints(("code",), ("chat",), ("chat",))) == "code"
    with pytest.raises(UnknownPool, match="'gone'"):
        NAMES.find(Hints(("gone",), ("chat",), ("chat",)))


def test_a_route_counts_only_if_its_whole_name_is_a_pools() -> None:
    assert NAMES.find(Hints(routes=("models/chat",))) == "chat"
    assert NAMES.find(Hints(clusters=("httproute/models/x/rule/0",), routes=("code",))) == "code"
    with pytest.raises(UnknownPool):
        NAMES.find(Hints(routes=("endpointpicker_chat_models_original_dst",)))


def test_names_that_mean_two_pools_mean_none() -> None:
    with pytest.raises(UnknownPool):
        NAMES.find(told("chat", "code"))
    twice = Names("models", ["original", "chat"])
    with pytest.raises(UnknownPool):
        twice.find(clusters("endpointpicker_chat_models_original_dst"))


def test_a_gateway_that_says_nothing_is_told_what_it_must_say() -> None:
    with pytest.raises(NoPool, match=r"xds\.cluster_name"):
        NAMES.find(Hints())


def test_an_error_shows_a_name_only_in_part() -> None:
    with pytest.raises(UnknownPool) as caught:
        NAMES.find(told("x" * 10_000))
    assert len(str(caught.value)) < 200


def test_a_port_belongs_to_the_pool_that_names_it() -> None:
    names = Names("models", ["chat"], {9012: "chat"})
    assert names.owner(9012) == "chat"
    assert names.owner(9002) is None


@given(st.lists(DNS, min_size=1, max_size=6, unique=True), DNS, st.integers(1, 65_535))
def test_whatever_pools_and_namespace_are_called_only_the_right_pool_is_found(
    pools: list[str], namespace: str, port: int
) -> None:
    names = Names(namespace, pools)
    for pool in pools:
        for cluster in (
            f"endpointpicker_{pool}_{namespace}_original_dst",
            f"inferencepool_{namespace}_{pool}_{port}",
        ):
            try:
                assert names.find(clusters(cluster)) == pool
            except UnknownPool:
                assert len({"original", "endpointpicker", "inferencepool", str(port)} & {*pools})
        assert names.find(told(f"{namespace}/{pool}")) == pool


@given(st.text(max_size=60))
def test_no_name_makes_it_fail_in_another_way(name: str) -> None:
    with contextlib.suppress(UnknownPool):
        assert NAMES.find(clusters(name)) in ("chat", "code", LONG)
