"""InferenceObjectives and InferenceModelRewrites to one table."""

from __future__ import annotations

from typing import Any

import pytest

from epp.collect.parse.policies import (
    Policy,
    PoolName,
    build_table,
    read_objective,
    read_rewrite,
)
from tests.support.pods import ALPHA, V1, objective, rewrite, rule

OURS = PoolName("pool", frozenset({V1}))


def read(manifest: dict[str, Any]) -> Policy:
    found = read_rewrite(manifest, OURS)
    assert found is not None
    return found


def test_objectives_give_priorities_by_name() -> None:
    manifests = [objective("high", 10), objective("batch", -5), objective("plain", None)]
    policies = [p for m in manifests if (p := read_objective(m, OURS)) is not None]
    assert build_table(policies, ()).priorities == {"high": 10, "batch": -5, "plain": 0}


@pytest.mark.parametrize(
    ("changes", "ours"),
    [({}, True), ({"pool": "other"}, False), ({"group": ALPHA}, False), ({"group": ""}, True)],
)
def test_only_objectives_of_our_pool_and_group_count(
    changes: dict[str, str], *, ours: bool
) -> None:
    assert (read_objective(objective("o", 1, **changes), OURS) is not None) is ours


def test_without_a_reference_an_object_is_nobodys() -> None:
    manifest = objective("o", 1)
    del manifest["spec"]["poolRef"]
    assert read_objective(manifest, OURS) is None
    assert read_objective({"metadata": {"name": "o"}}, OURS) is None


def test_weights_become_shares() -> None:
    policy = read(rewrite("r", rule("m", to={"a": 9, "b": 3})))
    table = build_table((), (policy,))
    assert table.exact["m"].models == ("a", "b")
    assert table.exact["m"].shares == (0.75, 1.0)
    assert table.generic is None


def test_without_weights_all_targets_have_the_same_share() -> None:
    _, split = read(rewrite("r", rule(to=dict.fromkeys("abcd")))).rules[0]
    assert split.shares == (0.25, 0.5, 0.75, 1.0)


def test_targets_without_a_weight_beside_one_with_are_never_chosen() -> None:
    policy = read(rewrite("r", rule("m", to={"a": 1, "b": None})))
    assert policy.rules[0][1].models == ("a",)
    assert "spec.rules[0]" in policy.problem
    assert "never chosen" in policy.problem


def test_a_rule_without_targets_is_left_out_and_said() -> None:
    policy = read(rewrite("r", rule("m", to={}), rule("n", to={"a": None})))
    assert [models for models, _ in policy.rules] == [("n",)]
    assert "spec.rules[0]" in policy.problem


def test_several_matches_of_a_rule_are_alternatives() -> None:
    table = build_table((), (read(rewrite("r", rule("m", "n", to={"a": None}))),))
    assert set(table.exact) == {"m", "n"}


def test_the_oldest_object_wins_and_within_one_the_first_rule() -> None:
    young = rewrite("a", rule("m", to={"young": None}), created="2026-02-01T00:00:00Z")
    old = rewrite(
        "b", rule("m", to={"first": None}), rule("m", to={"second": None}),
        rule(to={"any": None}), rule(to={"never": None}),
    )  # fmt: skip
    table = build_table((), (read(young), read(old)))
    assert table.exact["m"].models == ("first",)
    assert table.generic is not None
    assert table.generic.models == ("any",)


@pytest.mark.parametrize("spec", [{"poolRef": {}}, {"poolRef": {"name": "pool"}, "rules": [1]}])
def test_what_cannot_be_read_is_refused(spec: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"\$"):
        read_rewrite({"metadata": {"name": "r"}, "spec": spec}, OURS)
