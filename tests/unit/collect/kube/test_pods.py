"""Pods to endpoints: which ports, which address, and when a pod may be asked."""

from __future__ import annotations

from typing import Any

import pytest

from epp.collect.parse.pods import endpoints_of, read_pod
from tests.support.pods import pod

PORTS = (8000, 8001)


def addresses(manifest: dict[str, Any], ports: tuple[int, ...] = PORTS) -> list[str]:
    return [endpoint.address for endpoint in endpoints_of(read_pod(manifest), ports)]


def test_each_target_port_is_an_endpoint_and_its_place_is_the_rank() -> None:
    first, second = endpoints_of(read_pod(pod("a", "10.0.0.7", labels={"x": "y"})), PORTS)
    assert (first.id, first.address, first.rank) == ("uid-a:8000", "10.0.0.7:8000", 0)
    assert (second.id, second.address, second.rank) == ("uid-a:8001", "10.0.0.7:8001", 1)
    assert (second.name, second.namespace, second.labels) == ("a", "default", {"x": "y"})


@pytest.mark.parametrize(
    "key", ["llm-d.ai/active-ports", "inference.networking.k8s.io/active-ports"]
)
def test_active_ports_restrict_the_endpoints_and_ranks_stay(key: str) -> None:
    (only,) = endpoints_of(read_pod(pod(annotations={key: " 8001 ,9999"})), PORTS)
    assert (only.port, only.rank) == (8001, 1)


def test_the_newer_annotation_of_active_ports_wins() -> None:
    notes = {
        "inference.networking.k8s.io/active-ports": "8001",
        "llm-d.ai/active-ports": "8000",
    }
    assert addresses(pod(annotations=notes)) == ["10.0.0.1:8000"]


@pytest.mark.parametrize(
    ("value", "ports", "problem"),
    [
        pytest.param("", [], False, id="an empty list is no port"),
        pytest.param("8001,x", [8001], True, id="what can be read counts"),
        pytest.param("all", [8000, 8001], True, id="a typo takes no pod out of service"),
        pytest.param("99999999999999", [8000, 8001], True, id="no port at all"),
    ],
)
def test_active_ports_that_are_odd(value: str, ports: list[int], *, problem: bool) -> None:
    found = read_pod(pod(annotations={"llm-d.ai/active-ports": value}))
    assert [endpoint.port for endpoint in endpoints_of(found, PORTS)] == ports
    assert bool(found.problem) is problem


def test_pods_on_the_hosts_network_have_the_ports_they_declare() -> None:
    assert addresses(pod(host_network=True, ports=(8001, 9))) == ["10.0.0.1:8001"]
    assert len(addresses(pod(host_network=True))) == 2
    assert len(addresses(pod(ports=(8001,)))) == 2


@pytest.mark.parametrize(
    ("family", "host"), [("", "10.0.0.1"), ("ipv4", "10.0.0.1"), ("ipv6", "fd00::1")]
)
def test_a_dual_stack_pod_has_the_preferred_address(family: Any, host: str) -> None:
    both = pod(hosts=("10.0.0.1", "fd00:0::1"))
    assert read_pod(both, family).host == host


def test_a_pod_without_the_preferred_family_has_the_address_it_has() -> None:
    assert read_pod(pod(), "ipv6").host == "10.0.0.1"


def test_ipv6_addresses_have_one_spelling() -> None:
    assert addresses(pod(host="fd00:0:0::1"), (8000,)) == ["[fd00::1]:8000"]


@pytest.mark.parametrize(
    ("facts", "serving"),
    [
        ({}, True),
        ({"ready": False}, False),
        ({"deleting": True}, False),
        ({"labels": {"epp/draining": "true"}}, False),
        ({"annotations": {"epp/draining": "true"}}, False),
        ({"annotations": {"epp/draining": "false"}}, True),
        ({"labels": {"sleeping": "true"}}, False),
        ({"phase": "Failed"}, False),
        ({"phase": "Succeeded"}, False),
    ],
)
def test_a_pod_is_asked_only_while_it_serves(facts: dict[str, Any], *, serving: bool) -> None:
    found = read_pod(pod(**facts))
    assert found.serving is serving
    assert all(endpoint.draining is not serving for endpoint in endpoints_of(found, PORTS))


@pytest.mark.parametrize(
    "bare",
    [
        {"metadata": {"name": "a"}},
        {"metadata": {"name": "a", "labels": None, "annotations": None}, "spec": None,
         "status": None},
        {"metadata": {"name": "a"}, "spec": {"containers": None},
         "status": {"conditions": None, "podIPs": None, "podIP": "", "containerStatuses": None}},
    ],
)  # fmt: skip
def test_a_pod_that_says_nothing_is_gone_and_no_error(bare: dict[str, Any]) -> None:
    found = read_pod(bare)
    assert (found.gone, found.serving) == (True, False)


@pytest.mark.parametrize(
    "odd", [{}, {"metadata": {"name": 1}}, {"metadata": {"name": "a"}, "status": {"podIP": "x"}}]
)
def test_what_is_no_pod_is_refused(odd: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_pod(odd)
