"""A pool that follows a cluster through a fake API server: lists, watches, rights, versions."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from epp.collect.kube.wanted import OLDER_GROUP, Wanted
from epp.collect.parse.inference_pools import PoolSpec
from tests.support.clusters import (
    ALPHA_POOLS,
    NAMESPACE,
    OBJECTIVES,
    OLD_OBJECTIVES,
    PODS,
    POLICIES,
    POOLS,
    REWRITES,
    Followed,
    Lines,
    followed,
)
from tests.support.pages import until
from tests.support.pods import alpha_pool, inference_pool, objective, pod, rewrite, rule

POOL = (inference_pool(),)


def fleet(count: int, generation: str = "a") -> list[dict[str, Any]]:
    return [pod(f"{generation}-{i}", f"10.{ord(generation)}.{i // 250}.{i % 250}")
            for i in range(count)]  # fmt: skip


def test_a_pool_and_its_pods_become_endpoints() -> None:
    async def main() -> None:
        async with followed(pod("a"), pod("b", "10.0.0.2", labels={}), pools=POOL) as it:
            await until(lambda: it.pool.synced)
            assert it.asked == ["10.0.0.1:8000"]
            it.put(pod("c", "10.0.0.3"))
            await until(lambda: it.asked == ["10.0.0.1:8000", "10.0.0.3:8000"])

    asyncio.run(main())


def test_it_is_synced_only_with_pods_and_pool() -> None:
    async def main() -> None:
        with Lines("epp.collect.kube.cluster") as said:
            async with followed(pod("a")) as it:
                await until(lambda: said.about("error", "there is no InferencePool pool"))
                assert (it.pool.synced, it.known) == (False, [])
                it.kube.put(POOLS, inference_pool())
                await until(lambda: it.pool.synced)
                assert it.asked == ["10.0.0.1:8000"]
                it.kube.remove(POOLS, "pool")
                await until(lambda: not it.pool.synced)
                assert it.known == []

    asyncio.run(main())


def test_the_older_version_counts_where_v1_is_not_served() -> None:
    async def main() -> None:
        async with followed(pod("a"), missing={POOLS}) as it:
            it.kube.put(ALPHA_POOLS, alpha_pool(port=9000))
            await until(lambda: it.pool.synced)
            assert it.asked == ["10.0.0.1:9000"]
            it.kube.faults.missing.clear()
            it.kube.put(POOLS, inference_pool())
            await until(lambda: it.asked == ["10.0.0.1:8000"])

    asyncio.run(main())


def test_the_older_version_counts_where_the_role_names_only_that() -> None:
    async def main() -> None:
        async with followed(pod("a")) as it:
            it.kube.refuse(403, times=10**6, path=POOLS)
            it.kube.put(ALPHA_POOLS, alpha_pool(port=9000))
            await until(lambda: it.pool.synced)
            assert it.asked == ["10.0.0.1:9000"]

    asyncio.run(main())


def test_the_configured_group_is_the_only_one() -> None:
    async def main() -> None:
        wanted = Wanted(NAMESPACE, "pool", group=OLDER_GROUP)
        async with followed(pod("a"), pools=POOL, wanted=wanted) as it:
            it.kube.put(ALPHA_POOLS, alpha_pool(port=9000))
            await until(lambda: it.pool.synced)
            assert it.asked == ["10.0.0.1:9000"]
            assert it.kube.asked("list", POOLS) == []

    asyncio.run(main())


def test_pods_may_be_chosen_by_labels_without_a_pool() -> None:
    async def main() -> None:
        wanted = Wanted(NAMESPACE, selector="app in (vllm)", fixed=PoolSpec((8000, 8001)))
        async with followed(pod("a"), pod("b", labels={}), wanted=wanted) as it:
            await until(lambda: it.pool.synced)
            assert it.asked == ["10.0.0.1:8000", "10.0.0.1:8001"]
            it.put(pod("a", labels={}))
            await until(lambda: it.known == [])
            assert not it.kube.asked("list", "inference")

    asyncio.run(main())


def test_a_rolling_update_of_50_pods_loses_no_capacity_and_asks_no_terminating_pod() -> None:
    old, new = fleet(50, "a"), fleet(50, "b")

    async def replace(it: Followed, before: dict[str, Any], after: dict[str, Any]) -> None:
        name, host = after["metadata"]["name"], after["status"]["podIP"]
        leaving = before["status"]["podIP"]
        it.put(pod(name, host, ready=False), after)
        await until(lambda: f"{host}:8000" in it.asked)
        it.put(pod(before["metadata"]["name"], leaving, deleting=True))
        await until(lambda: f"{leaving}:8000" not in it.asked)
        assert f"{leaving}:8000" in it.known
        assert len(it.asked) == 50
        it.kube.remove(PODS, before["metadata"]["name"])

    async def main() -> None:
        async with followed(*old, pools=POOL) as it:
            await until(lambda: len(it.asked) == 50)
            for before, after in zip(old, new, strict=True):
                await replace(it, before, after)
            await until(lambda: len(it.known) == 50)
            assert it.asked == sorted(f"{each['status']['podIP']}:8000" for each in new)
            assert len(it.forgotten) == 50

    asyncio.run(main())


def test_2000_pods_are_read_in_pages_and_never_hold_up_the_loop_for_long() -> None:
    async def main() -> None:
        stalls: list[float] = []

        async def tick() -> None:
            while True:
                before = time.perf_counter()
                await asyncio.sleep(0.001)
                stalls.append(time.perf_counter() - before)

        ticking = asyncio.create_task(tick())
        async with followed(*fleet(2000), pools=POOL) as it:
            await until(lambda: it.pool.synced)
            assert len(it.asked) == 2000
            assert len(it.kube.asked("list", PODS)) == 4
            it.kube.put(POOLS, inference_pool(ports=(8000, 8001)))
            await until(lambda: len(it.pool) == 4000)
            assert it.forgotten == []
            it.kube.put(POOLS, inference_pool(labels={"app": "other"}))
            await until(lambda: len(it.pool) == 0)
        ticking.cancel()
        assert max(stalls) < 1.0

    asyncio.run(main())


def test_without_the_right_to_pods_it_is_not_ready_and_says_what_is_needed() -> None:
    async def main() -> None:
        with Lines("epp.collect.kube.cluster") as said:
            async with followed(pod("a"), pools=POOL) as it:
                it.kube.refuse(403, times=8, path=PODS)
                await until(lambda: said.about("error", "get, list and watch on pods"))
                assert not it.pool.synced
                await until(lambda: it.pool.synced)
                assert len(said.about("get, list and watch on pods")) == 1

    asyncio.run(main())


def test_rights_that_are_lost_later_leave_the_endpoints_as_they_are() -> None:
    async def main() -> None:
        with Lines("epp.collect.kube.cluster") as said:
            async with followed(pod("a"), pools=POOL) as it:
                await until(lambda: it.pool.synced)
                it.kube.refuse(403, times=10**6)
                it.kube.end_watches()
                await until(lambda: said.about("warning", "get, list and watch on pods"))
                assert (it.pool.synced, it.asked) == (True, ["10.0.0.1:8000"])

    asyncio.run(main())


def test_an_api_server_that_dies_changes_nothing_until_it_is_back() -> None:
    async def main() -> None:
        async with followed(pod("a"), pod("b", "10.0.0.2"), pools=POOL) as it:
            await until(lambda: it.pool.synced)
            await it.kube.stop()
            it.kube.remove(PODS, "a")
            it.put(pod("c", "10.0.0.3"))
            await asyncio.sleep(0.3)
            assert it.asked == ["10.0.0.1:8000", "10.0.0.2:8000"]
            it.kube.refuse(403, times=4)  # as a server that starts does
            await it.kube.start()
            await until(lambda: it.asked == ["10.0.0.2:8000", "10.0.0.3:8000"])
            assert it.pool.synced

    asyncio.run(main())


# --- objectives and rewrites -----------------------------------------------------------


def test_objectives_and_rewrites_reach_the_rules_and_leave_them() -> None:
    async def main() -> None:
        async with followed(pools=POOL) as it:
            it.kube.put(OBJECTIVES, objective("high", 10))
            it.kube.put(OBJECTIVES, objective("foreign", 10, pool="other"))
            it.kube.put(REWRITES, rewrite("r", rule("m", to={"n": None})))
            await until(lambda: set(it.book.table.exact) == {"m"})
            await until(lambda: it.book.table.priorities == {"high": 10})
            it.kube.put(OBJECTIVES, objective("high", -1))
            await until(lambda: it.book.table.priorities == {"high": -1})
            it.kube.remove(OBJECTIVES, "high")
            it.kube.remove(REWRITES, "r")
            await until(lambda: not it.book.table.exact and not it.book.table.priorities)

    asyncio.run(main())


def test_the_older_groups_policies_count_where_the_newer_is_not_installed() -> None:
    async def main() -> None:
        async with followed(pools=POOL, missing={OBJECTIVES}) as it:
            it.kube.put(OLD_OBJECTIVES, objective("high", 3))
            await until(lambda: it.book.table.priorities == {"high": 3})

    asyncio.run(main())


def test_one_unreadable_policy_harms_no_other() -> None:
    async def main() -> None:
        async with followed(pools=POOL) as it:
            odd = objective("odd", 1)
            odd["spec"]["priority"] = "high"
            it.kube.put(OBJECTIVES, odd)
            it.kube.put(OBJECTIVES, objective("good", 1))
            await until(lambda: it.book.table.priorities == {"good": 1})
            assert any("odd" in each for each in it.heard)

    asyncio.run(main())


def test_missing_crds_turn_the_features_off_and_are_said_once() -> None:
    async def main() -> None:
        with Lines("epp.collect.kube.policies") as said, Lines("epp.kube.reflect") as asked:
            async with followed(pod("a"), pools=POOL, missing=POLICIES) as it:
                await until(lambda: it.pool.synced)
                await until(lambda: len(said.about("is not installed")) == 2)
                collections = sorted(POLICIES)
                await until(
                    lambda: all(len(it.kube.asked("list", each)) >= 4 for each in collections)
                )
                assert len(said.lines) == 2
                assert len(asked.about("404")) == len(POLICIES)
                assert asked.about("warning") == []

    asyncio.run(main())


def accepted(it: Followed, collection: str, name: str) -> dict[str, Any]:
    found = it.kube.get(collection, name) or {}
    conditions = found.get("status", {}).get("conditions", [])
    return next((c for c in conditions if c["type"] == "Accepted"), {})


def test_policies_that_count_say_so_in_their_status() -> None:
    async def main() -> None:
        async with followed(pools=POOL) as it:
            it.kube.put(OBJECTIVES, objective("high", 10))
            it.kube.put(OBJECTIVES, objective("foreign", 10, pool="other"))
            it.kube.put(REWRITES, rewrite("r", rule("m", to={"n": 1, "o": None})))
            await until(lambda: bool(accepted(it, OBJECTIVES, "high")))
            await until(lambda: bool(accepted(it, REWRITES, "r")))
            found = accepted(it, OBJECTIVES, "high")
            assert (found["status"], found["reason"]) == ("True", "Accepted")
            assert (found["observedGeneration"], found["lastTransitionTime"][:2]) == (1, "20")
            assert "never chosen" in accepted(it, REWRITES, "r")["message"]
            kept = it.kube.get(OBJECTIVES, "high") or {}
            assert kept["status"]["conditions"][0]["type"] == "Ready"
            await asyncio.sleep(0.5)
            assert accepted(it, OBJECTIVES, "foreign") == {}
            assert len(it.kube.asked("patch")) == 2

    asyncio.run(main())


def test_without_the_right_to_write_statuses_it_asks_less_and_less() -> None:
    async def main() -> None:
        async with followed(pools=POOL) as it:
            it.kube.refuse(403, times=10**6, verbs=("patch",))
            for name in "abc":
                it.kube.put(OBJECTIVES, objective(name, 10))
            await until(lambda: len(it.book.table.priorities) == 3)
            await until(lambda: len(it.kube.asked("patch")) == 1)
            await asyncio.sleep(0.7)
            assert len(it.kube.asked("patch")) == 1

    asyncio.run(main())


def test_a_picker_that_does_not_lead_writes_no_status() -> None:
    async def main() -> None:
        async with followed(pools=POOL, leads=False) as it:
            it.kube.put(OBJECTIVES, objective("high", 10))
            await until(lambda: it.book.table.priorities == {"high": 10})
            await asyncio.sleep(0.5)
            assert it.kube.asked("patch") == []

    asyncio.run(main())
