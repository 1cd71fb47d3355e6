"""The picker follows a cluster's objects with the rights of the chart's Role, and no others."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tests.support.cluster.pods import status
from tests.support.cluster.replicas import Replicas, replicas
from tests.support.relay import Relay
from tests.support.serving import eventually

POOLS = ("inference.networking.k8s.io/v1", "inferencepools", "pool")
LLM_D = "llm-d.ai/v1alpha2"


async def has(it: Replicas, *addresses: str) -> None:
    """Wait until requests may go to these addresses and no others."""

    async def known() -> bool:
        found = [address for _, address in await it.picker.endpoints()]
        return sorted(found) == sorted(addresses)

    await eventually(known, bound=20.0)


async def change_pool(it: Replicas, spec: dict[str, Any]) -> None:
    await it.release.admin.patch(it.release.path(*POOLS), {"spec": spec})


def test_pods_are_used_while_they_are_ready_at_the_address_they_have(tmp_path: Path) -> None:
    async def main() -> None:
        async with replicas(tmp_path) as it:
            await it.pods.start("a", "127.77.0.1")
            await it.pods.start("b", "127.77.0.2", ready=False)
            await it.pods.start("c", "127.77.0.3", labels={"app": "other"})
            await has(it, "127.77.0.1:8000")
            await it.is_ready()
            await it.pods.tell("b", status("127.77.0.2"))
            await has(it, "127.77.0.1:8000", "127.77.0.2:8000")
            await it.pods.tell("a", status("127.77.0.9", restarts=1))
            await has(it, "127.77.0.2:8000", "127.77.0.9:8000")
            await it.pods.tell("a", {"phase": "Failed", "podIP": None, "podIPs": None})
            await has(it, "127.77.0.2:8000")
            await it.pods.delete("b")
            await has(it)
            await it.pods.end("b")

    asyncio.run(main())


def test_the_pool_s_changes_are_followed_and_its_end_is_the_end_of_readiness(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with replicas(tmp_path) as it:
            await it.pods.start("a", "127.77.0.1")
            await it.pods.start("b", "127.77.0.2", labels={"app": "other"})
            await has(it, "127.77.0.1:8000")
            await change_pool(it, {"targetPorts": [{"number": 8000}, {"number": 8001}]})
            await has(it, "127.77.0.1:8000", "127.77.0.1:8001")
            await change_pool(it, {"targetPorts": [{"number": 9000}]})
            await change_pool(it, {"selector": {"matchLabels": {"app": "other"}}})
            await has(it, "127.77.0.2:9000")
            await it.release.admin.delete(it.release.path(*POOLS))
            await it.is_ready(ready=False)
            pool = next(o for o in it.release.objects if o["kind"] == "InferencePool")
            await it.release.apply(pool)
            await it.is_ready()
            await has(it, "127.77.0.1:8000")

    asyncio.run(main())


def test_rights_that_are_taken_away_change_nothing_until_they_are_given_again(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        with Relay() as relay:
            async with replicas(tmp_path, way=lambda server: server.through(relay)) as it:
                binding = next(o for o in it.release.objects if o["kind"] == "RoleBinding")
                name = binding["metadata"]["name"]
                path = it.release.path("rbac.authorization.k8s.io/v1", "rolebindings", name)
                await it.pods.start("a", "127.77.0.1")
                await has(it, "127.77.0.1:8000")
                await it.release.admin.delete(path)

                async def said() -> bool:
                    """Watches that are open stay so; and a server needs a moment to know rights."""
                    await asyncio.to_thread(relay.cut)
                    return "its role needs get, list and watch on pods" in it.picker.log()

                await eventually(said, bound=30.0, every=0.5)
                await it.pods.start("b", "127.77.0.2")
                await has(it, "127.77.0.1:8000")
                assert await it.picker.ready()
                await it.release.admin.apply(binding, it.release.namespace)
                await has(it, "127.77.0.1:8000", "127.77.0.2:8000")

    asyncio.run(main())


def test_policies_say_in_their_status_that_they_count(tmp_path: Path) -> None:
    async def main() -> None:
        values = {"objectives": [{"name": "high", "priority": 5}]}
        async with replicas(tmp_path, values=values) as it:
            reference = {"name": "pool", "group": POOLS[0].partition("/")[0]}
            await it.release.add({
                "apiVersion": LLM_D, "kind": "InferenceModelRewrite", "metadata": {"name": "names"},
                "spec": {"poolRef": {**reference, "kind": "InferencePool"},
                         "rules": [{"targets": [{"modelRewrite": "small"}]}]},
            })  # fmt: skip
            paths = [it.release.path(LLM_D, "inferenceobjectives", "high"),
                     it.release.path(LLM_D, "inferencemodelrewrites", "names")]  # fmt: skip

            async def accepted(generation: int) -> bool:
                found = [await it.release.admin.get(path) or {} for path in paths]
                conditions = [
                    {c["type"]: c for c in (each.get("status") or {}).get("conditions") or ()}
                    for each in found
                ]
                return all(
                    each.get("Accepted", {}).get("status") == "True"
                    and each["Accepted"]["observedGeneration"] >= generation
                    for each in conditions
                )

            await eventually(lambda: accepted(1), bound=20.0)
            await it.release.admin.patch(paths[0], {"spec": {"priority": 7}})
            target = {"targets": [{"modelRewrite": "large"}]}
            await it.release.admin.patch(paths[1], {"spec": {"rules": [target]}})
            await eventually(lambda: accepted(2), bound=20.0)

    asyncio.run(main())


def test_metrics_are_read_by_whom_the_cluster_lets_and_nobody_else(tmp_path: Path) -> None:
    async def main() -> None:
        async with replicas(tmp_path, values={"monitoring": {"auth": True}}) as it:
            release, admin = it.release, it.release.admin
            for name in ("reader", "other"):
                about = {"metadata": {"name": name}}
                await release.add({"apiVersion": "v1", "kind": "ServiceAccount", **about})
            rbac, name = "rbac.authorization.k8s.io", f"{release.namespace}-metrics"
            rule = {"nonResourceURLs": ["/metrics"], "verbs": ["get"]}
            for kind, more in (
                ("ClusterRole", {"rules": [rule]}),
                ("ClusterRoleBinding", {
                    "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": name},
                    "subjects": [{"kind": "ServiceAccount", "name": "reader",
                                  "namespace": release.namespace}],
                }),
            ):  # fmt: skip
                it_self = {"apiVersion": f"{rbac}/v1", "kind": kind, "metadata": {"name": name}}
                await release.apply({**it_self, **more})

            async def status_of(token: str) -> int:
                shown = {"authorization": f"Bearer {token}"} if token else {}
                return (await it.picker.get("/metrics", shown)).status

            tokens = [await admin.token_of(release.namespace, who) for who in ("reader", "other")]

            async def lets() -> bool:
                return await status_of(tokens[0]) == 200

            await eventually(lets, bound=70.0, every=1.0)  # a verdict is kept for a minute
            assert await status_of(tokens[1]) == 403
            assert await status_of("") == 401

    asyncio.run(main())
