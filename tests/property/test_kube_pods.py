"""Whatever a cluster tells, in whatever order: the pool is what the pods are in the end."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from epp.collect.kube.members import Members
from epp.collect.parse.inference_pools import PoolSpec, read_pool
from epp.collect.parse.pods import Pod, as_pod
from epp.collect.parse.policies import PoolName, build_table, read_objective, read_rewrite, see
from epp.pool import Pool
from tests.support.pods import LABELS, V1, inference_pool, objective, pod, rewrite, rule

NAMES = st.sampled_from(["a", "b", "c"])
PODS = st.builds(
    lambda name, incarnation, facts: pod(name, facts.pop("host"), uid=name + incarnation, **facts),
    NAMES,
    st.sampled_from(["1", "2"]),
    st.fixed_dictionaries({
        "host": st.sampled_from(["10.0.0.1", "10.0.0.2", "fd00::1", None, "odd"]),
        "ready": st.booleans(),
        "deleting": st.booleans(),
        "labels": st.sampled_from([LABELS, {}, LABELS | {"sleeping": "true"}]),
        "restarts": st.integers(0, 2),
        "phase": st.sampled_from(["Running", "Running", "Failed"]),
        "annotations": st.sampled_from([{}, {"llm-d.ai/active-ports": "8001"}]),
    }),
)  # fmt: skip
SPECS = st.none() | st.builds(
    PoolSpec, st.sampled_from([(8000,), (8000, 8001), (8001, 9000)]), st.sampled_from([LABELS, {}])
)
EVENTS = st.lists(PODS.map(as_pod) | NAMES | SPECS, max_size=25)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)  # fmt: skip


def wanted(pods: dict[str, Pod], spec: PoolSpec | None) -> set[tuple[str, str]]:
    """Id and host of what may be asked, by the rules as the documentation has them."""
    return {
        (f"{each.uid}:{port}", each.host)
        for each in pods.values()
        for port in (spec.ports if spec is not None and spec.chooses(each.labels) else ())
        if each.serving and (each.active is None or port in each.active)
    }


@given(EVENTS)
def test_the_pool_is_what_the_pods_are_in_the_end(
    events: list[Pod | str | PoolSpec | None],
) -> None:
    pool, pods, spec = Pool(), dict[str, Pod](), None
    members = Members(pool)
    lost: set[str] = set()
    pool.on_forget(lost.add)
    ever: set[str] = set()
    for event in events:
        if isinstance(event, Pod):
            pods[event.name] = event
            members.put(event)
        elif isinstance(event, str):
            if (gone := pods.pop(event, None)) is not None:
                members.gone(gone)
        else:
            spec = event
            members.follow(spec)
        asked = {(str(e.id), e.host) for e in pool.snapshot() if not e.draining}
        assert asked == wanted(pods, spec)
        ever |= {str(endpoint.id) for endpoint in pool.snapshot()}
        assert ever - {str(endpoint.id) for endpoint in pool.snapshot()} <= lost
        assert {e.name for e in pool.snapshot()} <= pods.keys()


def mangled(manifest: dict[str, Any], path: list[int], value: Any) -> dict[str, Any]:
    """The manifest with some part of it replaced."""
    changed: Any = {"root": copy.deepcopy(manifest)}
    place, key = changed, "root"
    for step in path:
        inner = place[key]
        if not isinstance(inner, dict | list) or not inner:
            break
        keys = list(inner) if isinstance(inner, dict) else list(range(len(inner)))
        place, key = inner, keys[step % len(keys)]
    place[key] = value
    found = changed["root"]
    return (
        found if isinstance(found, dict) and isinstance(found.get("metadata"), dict) else manifest
    )


PLACES = st.lists(st.integers(0, 9), min_size=1, max_size=6)


@given(PLACES, JSON)
def test_no_manifest_of_a_pod_or_pool_is_an_error(path: list[int], value: Any) -> None:
    members = Members(Pool())
    members.follow(read_pool(mangled(inference_pool(), path, value)))
    members.put(as_pod(mangled(pod(annotations={"llm-d.ai/active-ports": "1"}), path, value)))


@given(PLACES, JSON)
def test_no_manifest_of_a_policy_breaks_the_table(path: list[int], value: Any) -> None:
    name = PoolName("pool", frozenset({V1}))
    manifest = rewrite("r", rule("m", to={"a": 1, "b": None}), rule(to={"c": None}))
    rewrites = see(mangled(manifest, path, value), lambda it: read_rewrite(it, name))
    objectives = see(mangled(objective("o", 1), path, value), lambda it: read_objective(it, name))
    build_table(
        [objectives.policy] if objectives.policy else [],
        [rewrites.policy] if rewrites.policy else [],
    )
