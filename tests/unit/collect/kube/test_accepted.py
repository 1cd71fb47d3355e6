"""The condition that a policy's status is given."""

from __future__ import annotations

from typing import Any

import pytest

from epp.collect.kube.accepted import COUNTS, condition_of
from epp.collect.kube.leader import lease_name
from epp.collect.kube.wanted import Wanted
from epp.collect.parse.policies import Policy, Seen

NOW = "2026-05-01T00:00:00Z"
BEFORE = "2026-01-01T00:00:00Z"
WRITTEN = {"type": "Accepted", "status": "True", "reason": "Accepted", "message": COUNTS,
           "observedGeneration": 3, "lastTransitionTime": BEFORE}  # fmt: skip


def seen(*conditions: dict[str, Any], problem: str = "") -> Seen:
    return Seen("o", Policy("o", problem=problem), "", 3, conditions)


def test_a_policy_that_counts_is_accepted() -> None:
    assert condition_of(seen(), NOW) == WRITTEN | {"lastTransitionTime": NOW}


def test_what_is_said_already_is_not_said_again() -> None:
    assert condition_of(seen(WRITTEN), NOW) is None


@pytest.mark.parametrize(
    ("old", "since"),
    [
        ({"observedGeneration": 2}, BEFORE),
        ({"message": "another"}, BEFORE),
        ({"status": "Unknown"}, NOW),
    ],
)
def test_an_older_condition_is_replaced_and_its_time_stays_with_its_status(
    old: dict[str, Any], since: str
) -> None:
    condition = condition_of(seen(WRITTEN | old), NOW)
    assert condition == WRITTEN | {"lastTransitionTime": since}


def test_what_does_nothing_in_a_policy_is_its_message() -> None:
    condition = condition_of(seen(problem="spec.rules[0]: odd"), NOW)
    assert condition is not None
    assert condition["message"] == "spec.rules[0]: odd"


def test_another_pools_policy_is_left_alone() -> None:
    assert condition_of(Seen("o"), NOW) is None


@pytest.mark.parametrize(
    ("pool", "pod", "owner"),
    [
        ("vllm", "picker-6d4cf56db6-x2x5c", "vllm"),
        ("", "my-picker-6d4cf56db6-x2x5c", "my-picker"),
        ("", "picker", "picker"),
        ("", "", "default"),
    ],
)
def test_a_lease_is_called_by_its_pool_or_else_its_deployment(
    pool: str, pod: str, owner: str
) -> None:
    assert lease_name("ns", pool, pod) == f"epp-ns-{owner}.llm-d.ai"


def test_the_older_group_is_looked_at_only_beside_the_current_one() -> None:
    assert Wanted("ns", "p").pools == (
        "/apis/inference.networking.k8s.io/v1/namespaces/ns/inferencepools",
        "/apis/inference.networking.x-k8s.io/v1alpha2/namespaces/ns/inferencepools",
    )
    assert Wanted("ns", "p", "inference.networking.x-k8s.io").pools == (
        "/apis/inference.networking.x-k8s.io/v1alpha2/namespaces/ns/inferencepools",
    )
