"""One watch of pods for many pools gives each pool what a watch of its own would give it."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from epp.collect.kube.crowd import Crowd
from epp.collect.kube.members import Members
from epp.collect.parse.inference_pools import PoolSpec
from epp.collect.parse.pods import Pod, as_pod
from epp.pool import Pool
from tests.support.pods import pod

POOLS = ("chat", "code", "both")
LABELS = st.dictionaries(st.sampled_from("ab"), st.sampled_from("xy"), max_size=2)
SPECS = st.none() | st.builds(
    PoolSpec, st.sampled_from([(8000,), (8000, 8001)]), LABELS, name=st.just("")
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 3), LABELS, st.integers(0, 1), st.booleans()),
        st.tuples(st.just("gone"), st.integers(0, 3)),
        st.tuples(st.just("follow"), st.sampled_from(POOLS), SPECS),
    ),
    max_size=20,
)


class Alone:
    """A pool that is told of every pod."""

    def __init__(self) -> None:
        self.pool = Pool()
        self.forgotten: list[str] = []
        self.pool.on_forget(self.forgotten.append)
        self.members = Members(self.pool)


def facts(pool: Pool) -> list[tuple[str, bool]]:
    return sorted((each.address, each.draining) for each in pool.snapshot())


def put(number: int, labels: dict[str, str], uid: int, *, ready: bool) -> Pod:
    manifest = pod(
        f"p-{number}", f"10.0.0.{number}", labels=labels, uid=f"{number}-{uid}", ready=ready
    )
    return as_pod(manifest, "")


@settings(max_examples=200)
@given(STEPS)
def test_every_pool_has_what_it_would_have_alone(steps: list[tuple[Any, ...]]) -> None:
    crowd, shared, alone = Crowd(), {}, {}
    for name in POOLS:
        shared[name], alone[name] = Pool(), Alone()
        crowd.add(name, Members(shared[name]))
    last: dict[int, Pod] = {}
    for step in steps:
        if step[0] == "follow":
            crowd.follow(step[1], step[2])
            alone[step[1]].members.follow(step[2])
        elif step[0] == "gone":
            if step[1] in last:
                here = last.pop(step[1])
                crowd.gone(here)
                for each in alone.values():
                    each.members.gone(here)
        else:
            here = last[step[1]] = put(step[1], step[2], step[3], ready=step[4])
            crowd.put(here)
            for each in alone.values():
                each.members.put(here)
        for name in POOLS:
            assert facts(shared[name]) == facts(alone[name].pool), (name, step)


def test_a_dropped_pools_endpoints_are_forgotten() -> None:
    crowd, pool = Crowd(), Pool()
    forgotten: list[str] = []
    pool.on_forget(forgotten.append)
    crowd.add("chat", Members(pool))
    crowd.follow("chat", PoolSpec((8000,), {"a": "x"}))
    crowd.put(put(1, {"a": "x"}, 0, ready=True))
    assert facts(pool) == [("10.0.0.1:8000", False)]
    crowd.drop("chat")
    assert facts(pool) == [] and len(forgotten) == 1
    crowd.put(put(1, {"a": "x"}, 0, ready=True))
    crowd.gone(put(1, {"a": "x"}, 0, ready=True))
    assert facts(pool) == []
