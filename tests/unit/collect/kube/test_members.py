"""What pods and their pool make of the endpoints, change by change."""

from __future__ import annotations

from typing import Any

from epp.collect.kube.members import Members
from epp.collect.parse.inference_pools import PoolSpec, read_pool
from epp.collect.parse.pods import as_pod
from epp.pool import Pool
from tests.support import build
from tests.support.pods import LABELS, inference_pool, pod

ONE = PoolSpec((8000,), LABELS)


class Here:
    """A pool that pods are put into, and what it forgot."""

    def __init__(self, spec: PoolSpec | None = ONE) -> None:
        self.pool = Pool()
        self.heard: list[str] = []
        self.forgotten: list[str] = []
        self.pool.on_forget(self.forgotten.append)
        self.members = Members(self.pool, report=self.heard.append)
        self.members.follow(spec)

    def put(self, *args: Any, **facts: Any) -> None:
        self.members.put(as_pod(pod(*args, **facts)))

    @property
    def known(self) -> list[str]:
        return sorted(endpoint.address for endpoint in self.pool.snapshot())

    @property
    def asked(self) -> list[str]:
        return sorted(endpoint.address for endpoint in self.pool.routable())


def test_pods_may_come_before_the_pool() -> None:
    here = Here(None)
    here.put()
    assert here.known == []
    here.members.follow(ONE)
    assert here.asked == ["10.0.0.1:8000"]


def test_only_the_pods_that_the_selector_names_are_members() -> None:
    here = Here()
    here.put("a", labels={"app": "other"})
    assert here.known == []
    here.put("a")
    assert here.asked == ["10.0.0.1:8000"]
    here.put("a", labels={"app": "other"})
    assert here.known == []


def test_a_deleted_pool_has_no_endpoints_and_a_new_one_has_them_again() -> None:
    here = Here()
    here.put()
    here.members.follow(None)
    assert here.known == []
    here.members.follow(ONE)
    assert here.asked == ["10.0.0.1:8000"]


def test_without_labels_every_pod_told_is_a_member() -> None:
    here = Here(PoolSpec((1,)))
    here.put(labels={})
    assert here.asked == ["10.0.0.1:1"]


def test_a_pod_that_was_never_ready_is_not_here() -> None:
    here = Here()
    here.put(ready=False)
    assert here.known == []
    here.put(ready=True)
    assert here.asked == ["10.0.0.1:8000"]


def test_a_pod_that_is_not_ready_for_a_while_keeps_what_is_known_of_it() -> None:
    here = Here()
    here.put()
    here.pool.set_load("uid-a:8000", build.load())  # type: ignore[arg-type]
    here.put(ready=False)
    assert (here.known, here.asked) == (["10.0.0.1:8000"], [])
    here.put(ready=True)
    (back,) = here.pool.routable()
    assert back.load == build.load()
    assert here.forgotten == []


def test_a_terminating_pod_drains_and_is_forgotten_when_it_is_gone() -> None:
    here = Here()
    here.put()
    here.put(deleting=True)
    assert (here.known, here.asked, here.forgotten) == (["10.0.0.1:8000"], [], [])
    here.put(deleting=True, ready=False)
    assert here.known == ["10.0.0.1:8000"]
    here.members.gone(as_pod(pod(deleting=True)))
    assert (here.known, here.forgotten) == ([], ["uid-a:8000"])


def test_a_restarted_container_voids_what_was_known() -> None:
    here = Here()
    here.put()
    here.pool.set_load("uid-a:8000", build.load())  # type: ignore[arg-type]
    here.put(ready=False)
    here.put(ready=True, restarts=1)
    (after,) = here.pool.routable()
    assert (after.load, here.forgotten) == (None, ["uid-a:8000"])


def test_falling_asleep_voids_what_was_known_and_waking_up_does_not() -> None:
    here = Here()
    here.put()
    here.put(labels=LABELS | {"sleeping": "true"})
    assert (here.asked, here.forgotten) == ([], ["uid-a:8000"])
    here.put()
    assert (here.asked, here.forgotten) == (["10.0.0.1:8000"], ["uid-a:8000"])


def test_an_unchanged_pod_changes_nothing() -> None:
    here = Here()
    here.put()
    before = here.pool.snapshot()
    here.put()
    assert here.pool.snapshot() is before


def test_changed_ports_keep_the_endpoints_of_the_ports_that_stay() -> None:
    here = Here(PoolSpec((8000, 8001), LABELS))
    here.put()
    here.pool.set_load("uid-a:8001", build.load())  # type: ignore[arg-type]
    here.members.follow(PoolSpec((8001, 8002), LABELS))
    first, second = sorted(here.pool.snapshot(), key=lambda endpoint: endpoint.port)
    assert (first.port, first.rank, first.load) == (8001, 0, build.load())
    assert (second.port, second.rank, second.load) == (8002, 1, None)
    assert here.forgotten == ["uid-a:8000"]


def test_a_pod_that_cannot_be_read_is_left_out_and_the_others_go_on() -> None:
    here = Here()
    here.put("a")
    odd = pod("b", "10.0.0.2")
    odd["status"]["podIP"] = "not an address"
    here.members.put(as_pod(odd))
    here.put("c", "10.0.0.3")
    assert here.asked == ["10.0.0.1:8000", "10.0.0.3:8000"]
    assert "default/b" in here.heard[0]


def test_what_is_odd_about_a_pod_is_said_once() -> None:
    here = Here()
    for restarts in (0, 1):
        here.put(annotations={"llm-d.ai/active-ports": "x"}, restarts=restarts)
    assert len(here.heard) == 1


def test_a_pods_late_deletion_does_not_touch_its_successor() -> None:
    here = Here()
    here.put("a", "10.0.0.1", uid="old")
    here.put("a", "10.0.0.2", uid="new")
    assert here.known == ["10.0.0.2:8000"]
    here.members.gone(as_pod(pod("a", "10.0.0.1", uid="old")))
    assert (here.known, here.forgotten) == (["10.0.0.2:8000"], ["old:8000"])


def test_a_pool_read_from_its_manifest_is_followed() -> None:
    here = Here(read_pool(inference_pool(ports=(1, 2))))
    here.put()
    assert here.asked == ["10.0.0.1:1", "10.0.0.1:2"]
