"""Pods that are one engine: an endpoint is a group and a rank, and a group is healthy as a whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from epp.collect.kube.members import Members
from epp.collect.parse.inference_pools import PoolSpec
from epp.collect.parse.pods import LEADER_WORKER_GROUP, as_pod, endpoints_of, read_pod
from epp.model import GROUP, EndpointId, Load
from epp.pool import Pool
from tests.support import build
from tests.support.pods import LABELS, pod

A0, A1 = (build.endpoint(f"a{i}", labels={GROUP: "a"}, rank=i) for i in range(2))
B0, B1 = (build.endpoint(f"b{i}", labels={GROUP: "b"}, rank=i) for i in range(2))
ALONE = build.endpoint("alone")


def pool() -> Pool:
    made = Pool()
    for each in (A0, A1, B0, B1, ALONE):
        made.put(each)
    return made


def names(made: Pool) -> list[str]:
    return [each.name for each in made.routable()]


def drains(made: Pool) -> None:
    made.put(build.endpoint("a1", labels={GROUP: "a"}, rank=1, draining=True))


def sleeps(made: Pool) -> None:
    made.set_load(A1.id, Load(at=0.0, asleep=True))


def is_gone(made: Pool) -> None:
    made.set_reachable(A1.id, reachable=False)


@pytest.mark.parametrize("falls", [drains, sleeps, is_gone])
def test_one_rank_that_cannot_answer_takes_its_group_out_and_no_other(
    falls: Callable[[Pool], None],
) -> None:
    made = pool()
    assert names(made) == ["a0", "a1", "b0", "b1", "alone"]
    falls(made)
    assert names(made) == ["b0", "b1", "alone"]


def test_a_group_is_back_when_all_its_ranks_are() -> None:
    made = pool()
    is_gone(made)
    made.set_reachable(A1.id, reachable=True)
    assert names(made) == ["a0", "a1", "b0", "b1", "alone"]


def test_ranks_without_a_group_are_engines_of_their_own() -> None:
    made = Pool()
    made.put(build.endpoint("r0", rank=0))
    made.put(build.endpoint("r1", rank=1, reachable=False))
    assert names(made) == ["r0"]


def test_if_every_group_has_a_bad_rank_the_good_ranks_serve() -> None:
    made = pool()
    made.remove(ALONE.id)
    is_gone(made)
    made.set_reachable(B0.id, reachable=False)
    assert names(made) == ["a0", "b1"]


def test_an_endpoint_is_a_group_and_a_rank() -> None:
    found = endpoints_of(read_pod(pod("w", "10.0.0.2", labels={GROUP: "a"})), (8000, 8001))
    assert [(each.labels[GROUP], each.rank, each.port) for each in found] == [
        ("a", 0, 8000), ("a", 1, 8001),
    ]  # fmt: skip


LABEL_FORMS = [GROUP, LEADER_WORKER_GROUP]


class Cluster:
    """Two groups of two pods with two ranks each, as an API server tells of them."""

    def __init__(self, label: str) -> None:
        self.pool = Pool()
        self._label = label
        self._members = Members(self.pool)
        self._members.follow(PoolSpec((8000, 8001), LABELS))
        for number, name in enumerate(("a0", "a1", "b0", "b1")):
            self.put(name, f"10.0.0.{number}")

    def put(self, name: str, host: str | None, **facts: Any) -> None:
        labels = {**LABELS, self._label: name[0], **facts.pop("labels", {})}
        self._members.put(as_pod(pod(name, host, labels=labels, **facts)))

    def lose(self, name: str) -> None:
        self._members.gone(as_pod(pod(name)))

    @property
    def asked(self) -> list[str]:
        return [f"{each.name}:{each.rank}" for each in self.pool.routable()]


def is_not_ready(cluster: Cluster) -> None:
    cluster.put("a1", "10.0.0.1", ready=False)


def is_deleted(cluster: Cluster) -> None:
    cluster.put("a1", "10.0.0.1", deleting=True)


def is_replaced_by_one_that_starts(cluster: Cluster) -> None:
    cluster.lose("a1")
    cluster.put("a1", "10.0.0.9", uid="another", ready=False)


def is_replaced_by_one_without_a_node(cluster: Cluster) -> None:
    cluster.lose("a1")
    cluster.put("a1", None, uid="another", ready=False, phase="Pending")


def has_a_rank_where_nothing_listens(cluster: Cluster) -> None:
    cluster.pool.set_reachable(EndpointId("uid-a1:8001"), reachable=False)


@pytest.mark.parametrize("label", LABEL_FORMS)
@pytest.mark.parametrize(
    "falls",
    [
        is_not_ready,
        is_deleted,
        is_replaced_by_one_that_starts,
        is_replaced_by_one_without_a_node,
        has_a_rank_where_nothing_listens,
    ],
)
def test_a_group_of_pods_that_lacks_one_rank_gets_nothing(
    label: str, falls: Callable[[Cluster], None]
) -> None:
    cluster = Cluster(label)
    whole = ["a0:0", "a0:1", "a1:0", "a1:1", "b0:0", "b0:1", "b1:0", "b1:1"]
    assert cluster.asked == whole
    falls(cluster)
    assert cluster.asked == whole[4:]
    cluster.lose("a1")
    cluster.put("a1", "10.0.0.9", uid="next")
    assert sorted(cluster.asked) == whole


@pytest.mark.parametrize("phase", ["Failed", "Succeeded"])
def test_a_pod_that_has_ended_for_good_is_no_rank_that_its_group_lacks(phase: str) -> None:
    cluster = Cluster(GROUP)
    cluster.put("a9", "10.0.0.9", ready=False)
    assert "a0:0" not in cluster.asked
    cluster.put("a9", "10.0.0.9", ready=False, phase=phase)
    assert "a0:0" in cluster.asked


def test_a_pod_that_is_gone_before_it_was_ready_is_not_awaited() -> None:
    cluster = Cluster(GROUP)
    cluster.put("a9", None, ready=False)
    cluster.lose("a9")
    assert "a0:0" in cluster.asked


def test_an_empty_group_is_none() -> None:
    cluster = Cluster(LEADER_WORKER_GROUP)
    for number in (0, 1):
        cluster.put(f"a{number}", f"10.0.0.{number}", labels={GROUP: ""}, ready=number == 0)
    assert cluster.asked[:2] == ["a0:0", "a0:1"]
