"""Field problems of endpoints, as the objects of a cluster bring them about."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from epp.collect.kube.wanted import Wanted
from epp.collect.kv.discovery import configured
from epp.ledger import Ledger
from epp.model import EndpointId
from epp.prefix.precise_settings import PodDiscoveryConfig
from epp.telemetry.gauges import pool_gauges
from tests.support import build
from tests.support.clusters import (
    ALPHA_POOLS,
    OBJECTIVES,
    PODS,
    POLICIES,
    POOLS,
    Lines,
    followed,
    kubeconfig,
)
from tests.support.kube import FakeKube
from tests.support.pages import until
from tests.support.pods import ALPHA, LABELS, V1, alpha_pool, inference_pool, objective, pod
from tests.support.serving import NOT_SERVING, SERVING, eventually, serving

POOL = (inference_pool(),)


def test_b055_each_pod_says_which_of_the_pools_ports_it_has() -> None:
    """Field problem B055 (llm-d/llm-d-router#2296): pod x port products that do not exist."""

    async def main() -> None:
        pools = (inference_pool(ports=(8000, 8001, 8002, 8003)),)
        told = {"llm-d.ai/active-ports": "8000,8001"}
        on_host = pod("b", "10.0.0.2", host_network=True, ports=(8002, 8003))
        async with followed(pod("a", annotations=told), on_host, pools=pools) as it:
            await until(lambda: it.pool.synced)
            assert it.asked == [
                "10.0.0.1:8000", "10.0.0.1:8001", "10.0.0.2:8002", "10.0.0.2:8003",
            ]  # fmt: skip
            ranks = {endpoint.port: endpoint.rank for endpoint in it.pool.snapshot()}
            assert ranks == {8000: 0, 8001: 1, 8002: 2, 8003: 3}

    asyncio.run(main())


def test_b056_event_ports_count_on_from_the_rank_that_a_pod_names_as_its_first() -> None:
    """Field problem B056 (llm-d/llm-d-router#2227): ports by the pod's own count of ranks."""

    async def main() -> None:
        pools = (inference_pool(ports=tuple(range(8000, 8008))),)
        worker = pod("b", "10.0.0.2", annotations={"epp/first-rank": "8"})
        third = pod("c", "10.0.0.3", labels={**LABELS, "epp/first-rank": "16"})
        odd = pod("d", "10.0.0.4", annotations={"epp/first-rank": "x"})
        async with followed(pod("a"), worker, third, odd, pools=pools) as it:
            await until(lambda: it.pool.synced)
            found: dict[str, list[str]] = {}
            for each in sorted(it.pool.snapshot(), key=lambda endpoint: endpoint.rank):
                where = configured(each, PodDiscoveryConfig(replay_socket_port=6000))[0]
                found.setdefault(each.name, []).extend([where.events, where.replay])
            for name, host, first in (("a", 1, 0), ("b", 2, 8), ("c", 3, 16), ("d", 4, 0)):
                assert found[name] == [
                    f"tcp://10.0.0.{host}:{base + rank}"
                    for rank in range(first, first + 8)
                    for base in (5557, 6000)
                ]
            assert it.heard == ["pod default/d: epp/first-rank: 'x' is no rank"]

    asyncio.run(main())


def test_b058_a_pod_that_cannot_be_read_stops_no_other() -> None:
    """Field problem B058 (vllm-project/production-stack#656): the table was not updated again."""

    async def main() -> None:
        async with followed(pod("a"), pod("odd", "10.0.0.9"), pools=POOL) as it:
            await until(lambda: len(it.asked) == 2)
            odd = pod("odd", "no address", annotations={"llm-d.ai/active-ports": "x"})
            it.put(odd, pod("b", "10.0.0.2"))
            await until(lambda: it.asked == ["10.0.0.1:8000", "10.0.0.2:8000"])
            it.kube.remove(PODS, "a")
            await until(lambda: it.asked == ["10.0.0.2:8000"])
            assert any("default/odd" in text for text in it.heard)

    asyncio.run(main())


def test_b059_an_evicted_pod_is_gone_at_once() -> None:
    """Field problem B059 (vllm-project/production-stack#1008): an evicted pod stayed."""

    async def main() -> None:
        evicted = pod("a", None, phase="Failed", ready=False)
        evicted["status"]["podIP"] = None
        async with followed(pod("a"), pools=POOL) as it:
            await until(lambda: it.asked == ["10.0.0.1:8000"])
            it.put(evicted)
            await until(lambda: it.known == [])
            assert it.heard == []

    asyncio.run(main())


def test_b060_a_pod_created_again_is_used_only_under_its_new_address() -> None:
    """Field problem B060 (vllm-project/production-stack#471): traffic went to the old address."""

    async def main() -> None:
        async with followed(pod("sts-0", uid="first"), pools=POOL) as it:
            await until(lambda: it.asked == ["10.0.0.1:8000"])
            it.kube.remove(PODS, "sts-0")
            it.put(pod("sts-0", "10.0.0.2", uid="second"))
            await until(lambda: it.known == ["10.0.0.2:8000"])
            assert it.forgotten == ["first:8000"]

    asyncio.run(main())


def test_b064_every_target_port_is_usable_and_one_alone_too() -> None:
    """Field problem B064 (istio/istio#57638): more than one target port gave no valid route."""

    async def main() -> None:
        async with followed(pod("a"), pools=(inference_pool(ports=(8000, 8001)),)) as it:
            await until(lambda: it.asked == ["10.0.0.1:8000", "10.0.0.1:8001"])
            it.kube.put(POOLS, inference_pool(ports=(8001,)))
            await until(lambda: it.asked == ["10.0.0.1:8001"])

    asyncio.run(main())


def test_b065_a_terminating_pod_that_passes_its_probe_gets_nothing_new() -> None:
    """Field problem B065 (production-stack#601): terminating pods still got requests."""

    async def main() -> None:
        listed = pod("listed", "10.0.0.2", deleting=True)
        other = pod("other", "10.0.0.3", deleting=True, labels={"app": "other"})
        async with followed(pod("a"), pod("b", "10.0.0.4"), listed, other, pools=POOL) as it:
            await until(lambda: it.pool.synced)
            assert it.asked == ["10.0.0.1:8000", "10.0.0.4:8000"]
            it.put(pod("a", deleting=True))
            await until(lambda: it.asked == ["10.0.0.4:8000"])
            it.kube.put(POOLS, inference_pool(labels={"app": "other"}))
            await until(lambda: it.known == ["10.0.0.3:8000"])
            assert it.asked == []

    asyncio.run(main())


def test_b066_a_drained_pod_keeps_its_requests_and_shows_them() -> None:
    """Field problem B066 (volcano-sh/kthena#1589): scale-down broke running streams."""

    async def main() -> None:
        ledger = Ledger()
        async with followed(pod("a"), pod("b", "10.0.0.2"), pools=POOL) as it:
            it.pool.on_forget(ledger.forget)
            await until(lambda: it.pool.synced)
            endpoint = it.pool.get(EndpointId("uid-a:8000"))
            assert endpoint is not None
            reservation = ledger.reserve(endpoint, 100)
            it.put(pod("a", annotations={"epp/draining": "true"}))
            await until(lambda: it.asked == ["10.0.0.2:8000"])
            it.put(pod("a", annotations={"epp/draining": "true"}, deleting=True, ready=False))
            await asyncio.sleep(0.1)
            assert ledger.get(endpoint.id).requests == 1
            gauges = dict(pool_gauges("pool", it.pool.snapshot, ledger))
            requests = gauges["llm_d_epp_inflight_requests"]()
            assert isinstance(requests, dict)
            assert {labels[0]: value for labels, value in requests.items()}["a-rank-0"] == 1
            reservation.release()
            assert ledger.get(endpoint.id).requests == 0

    asyncio.run(main())


def test_b068_an_ipv6_pod_has_one_spelling() -> None:
    """Field problem B068 (volcano-sh/kthena PR 1495): addresses without brackets."""

    async def main() -> None:
        async with followed(pod("a", "fd00:0::1"), pools=POOL) as it:
            await until(lambda: it.asked == ["[fd00::1]:8000"])
            it.put(pod("a", "fd00::1"))
            await asyncio.sleep(0.1)
            assert (it.asked, it.forgotten) == (["[fd00::1]:8000"], [])

    asyncio.run(main())


def test_b070_a_sleeping_pod_is_not_asked_and_its_cache_is_forgotten() -> None:
    """Field problem B070 (vllm-project/production-stack#391): requests went to sleeping engines."""

    async def main() -> None:
        async with followed(pod("a"), pod("b", "10.0.0.2"), pools=POOL) as it:
            await until(lambda: len(it.asked) == 2)
            it.put(pod("a", labels=LABELS | {"sleeping": "true"}))
            await until(lambda: it.asked == ["10.0.0.2:8000"])
            assert it.forgotten == ["uid-a:8000"]
            it.put(pod("a"))
            await until(lambda: len(it.asked) == 2)

    asyncio.run(main())


@pytest.mark.parametrize("how", ["environment", "service account or kubeconfig"])
def test_b163_the_pool_of_the_pickers_own_namespace_is_found(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Field problem B163 (kgateway-dev/kgateway#12218): the pool in another namespace was not."""
    monkeypatch.setenv("NAMESPACE", "models" if how == "environment" else "")

    async def main() -> None:
        async with FakeKube() as kube:
            kube.put(POOLS, inference_pool())
            kube.put(PODS, pod("wrong", "127.0.0.9"))
            for path, it in ((POOLS, inference_pool()), (PODS, pod("right", "127.0.0.2"))):
                kube.put(path.replace("/default/", "/models/"), it)
            flag = kubeconfig(tmp_path, kube, "other" if how == "environment" else "models")
            async with serving(tmp_path, flag, endpoints="--pool-name=pool") as picker:

                async def found() -> list[str]:
                    return [each["address"] for each in await picker.json("/debug/pool")]

                assert await eventually(found) == ["127.0.0.2:8000"]

    asyncio.run(main())


def test_b163_a_pool_that_is_not_there_is_named(tmp_path: Path) -> None:
    """Field problem B163: and if it is missing, the error says which one and where."""

    async def main() -> None:
        async with FakeKube() as kube:
            flags = (kubeconfig(tmp_path, kube), "--pool-namespace=models")
            async with serving(tmp_path, *flags, endpoints="--pool-name=nowhere") as picker:

                async def said() -> bool:
                    return "there is no InferencePool nowhere" in picker.log()

                await eventually(said)
                assert "in namespace models" in picker.log()
                assert await picker.health("readiness") == NOT_SERVING
                assert await picker.health("liveness") == SERVING

    asyncio.run(main())


@pytest.mark.parametrize(("group", "port"), [(V1, 8000), (ALPHA, 9000)])
def test_b164_only_the_configured_groups_pool_counts(group: str, port: int) -> None:
    """Field problem B164 (gateway-api-inference-extension#1275): the other group's counted."""

    async def main() -> None:
        wanted = Wanted("default", "pool", group=group)
        async with followed(pod("a"), pools=POOL, wanted=wanted) as it:
            it.kube.put(ALPHA_POOLS, alpha_pool(port=9000))
            foreign = objective("o", 1, group=V1 if group == ALPHA else "example.com")
            it.kube.put(OBJECTIVES, foreign)
            it.kube.put(OBJECTIVES, objective("ours", 2, group=group))
            await until(lambda: it.book.table.priorities == {"ours": 2})
            await until(lambda: it.asked == [f"10.0.0.1:{port}"])
            it.kube.remove(POOLS, "pool")
            it.kube.put(ALPHA_POOLS, alpha_pool(port=9001))
            await until(lambda: it.asked == ([] if group == V1 else ["10.0.0.1:9001"]))

    asyncio.run(main())


@pytest.mark.parametrize("lacking", ["the CRDs", "the rights"])
def test_b168_without_the_optional_resources_it_is_ready_and_says_so(lacking: str) -> None:
    """Field problem B168 (istio/istio.io#17528): no list right on one CRD, never ready."""
    missing = POLICIES if lacking == "the CRDs" else ()

    async def main() -> None:
        with Lines("epp.collect.kube.policies") as said:
            async with followed(pod("a"), pools=POOL, missing=missing) as it:
                if not missing:
                    for path in POLICIES:
                        it.kube.refuse(403, times=10**6, path=path)
                await until(lambda: it.pool.synced)
                await until(lambda: len(said.lines) == 2)
                assert it.asked == ["10.0.0.1:8000"]

    asyncio.run(main())


def _no_such_status(manifest: dict[str, Any]) -> dict[str, Any]:
    return {**manifest, "status": None}


def test_b162_a_pod_whose_address_changed_is_used_only_there() -> None:
    """Field problem B162 (sgl-project/sglang PR 30270): the old address stayed registered."""

    async def main() -> None:
        async with followed(pod("a"), pools=POOL) as it:
            await until(lambda: it.asked == ["10.0.0.1:8000"])
            it.pool.set_load(EndpointId("uid-a:8000"), build.load())
            it.put(pod("a", "10.0.0.7"))
            await until(lambda: it.known == ["10.0.0.7:8000"])
            (after,) = it.pool.snapshot()
            assert (after.load, it.forgotten) == (None, ["uid-a:8000"])

    asyncio.run(main())


def test_b165_the_pools_changes_are_followed_again_and_again() -> None:
    """Field problem B165 (gateway-api-inference-extension PR 147): only the first one was."""

    async def main() -> None:
        both = pod("b", "10.0.0.2", labels=LABELS | {"tier": "x"})
        async with followed(pod("a"), both, pools=POOL) as it:
            await until(lambda: len(it.asked) == 2)
            it.kube.put(POOLS, inference_pool(labels={"tier": "x"}))
            await until(lambda: it.asked == ["10.0.0.2:8000"], 1.0)
            it.kube.put(POOLS, inference_pool(labels={"tier": "x"}, ports=(8000, 9000)))
            await until(lambda: it.asked == ["10.0.0.2:8000", "10.0.0.2:9000"], 1.0)
            assert it.forgotten == ["uid-a:8000"]

    asyncio.run(main())


def test_b167_a_pool_that_lacks_optional_fields_is_no_crash() -> None:
    """Field problem B167 (agentgateway/agentgateway#1719): a panic on a missing field."""

    async def main() -> None:
        async with followed(pod("a"), _no_such_status(pod("b")), pools=POOL) as it:
            await until(lambda: it.asked == ["10.0.0.1:8000"])
            for spec in (None, {}, {"selector": {}}, {"selector": None, "targetPorts": None},
                         {"selector": {"matchLabels": LABELS}, "targetPorts": []}):  # fmt: skip
                it.kube.put(POOLS, {**inference_pool(), "spec": spec})
                await until(lambda: it.known == [])
                it.kube.put(POOLS, inference_pool())
                await until(lambda: it.asked == ["10.0.0.1:8000"])

    asyncio.run(main())
