"""The Role names what the picker asks of a cluster, and nothing else."""

from __future__ import annotations

import asyncio
import re
from types import SimpleNamespace
from typing import Any

from epp.clock import ManualClock
from epp.collect.kube.configs import Config
from epp.collect.kube.leader import Leadership, lease_name
from epp.collect.kube.pools import Pools
from epp.collect.kube.wanted import Wanted
from epp.collect.parse.inference_pools import PoolSpec
from epp.kube.lease import Candidate
from epp.kube.review import Reviewer
from epp.pool import Pool
from epp.rules import RuleBook
from tests.support.chart import POOL, all_of, container, one, read, render
from tests.support.clusters import (
    ALPHA_POOLS,
    CONFIG_MAPS,
    OBJECTIVES,
    OLD_OBJECTIVES,
    OLD_REWRITES,
    POOLS,
    QUICK,
    REWRITES,
    followed,
)
from tests.support.kube import Asked, FakeKube
from tests.support.pages import running, until
from tests.support.pods import (
    alpha_pool,
    config_map,
    inference_pool,
    objective,
    pod,
    rewrite,
    rule,
)

Rights = set[tuple[str, str, str]]
_PATH = re.compile(
    r"^/(?:api|apis/([^/]+))/[^/]+(?:/namespaces/[^/]+)?/([^/]+)(?:/[^/]+(/status)?)?$"
)

VERBS = {"replace": "update"}  #: of the server's requests, where rights have another word


def granted(values: dict[str, Any], kind: str = "Role") -> Rights:
    rules = one(render(values), kind)["rules"]
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def used(asked: list[Asked]) -> Rights:
    found: Rights = set()
    for each in asked:
        match = _PATH.match(each.path)
        assert match is not None, each.path
        verb = VERBS.get(each.verb, each.verb)
        found.add((match[1] or "", match[2] + (match[3] or ""), verb))
    return found


async def asked_of_a_cluster(*, older: bool) -> list[Asked]:
    """All that is asked while a pool and its policies are followed and their statuses written."""
    missing = {POOLS, OBJECTIVES, REWRITES} if older else set()
    async with followed(pod("a"), missing=missing) as it:
        it.kube.put(ALPHA_POOLS if older else POOLS, alpha_pool() if older else inference_pool())
        it.kube.put(OLD_OBJECTIVES if older else OBJECTIVES, objective("high", 5))
        it.kube.put(OLD_REWRITES if older else REWRITES, rewrite("names", rule(to={"small": 1})))
        await until(lambda: it.pool.synced and len(it.kube.asked("patch")) >= 2)
        return list(it.kube.requests)


def test_the_role_grants_what_following_a_pool_uses_and_no_more() -> None:
    async def main() -> Rights:
        new, old = await asked_of_a_cluster(older=False), await asked_of_a_cluster(older=True)
        return used(new) | used(old)

    assert granted(read("gateway")) == asyncio.run(main())


def test_for_many_pools_it_grants_the_config_maps_that_are_named_besides() -> None:
    async def main() -> Rights:
        async with FakeKube() as kube:
            kube.put(CONFIG_MAPS, config_map("chat-picker", x=""))
            kube.put(POOLS, inference_pool(config="chat-picker"))
            homes = Kept()
            pools = Pools(
                kube.access(), Wanted("default"), names=frozenset(), homes=homes, report=print,
                habits=QUICK,
            )  # fmt: skip
            async with running(pools.run()):
                await until(lambda: homes.configs == ["ConfigMap chat-picker/x"])
            return {right for right in used(kube.requests) if right[1] == "configmaps"}

    values = read("many-pools")
    assert granted(values) == granted(read("gateway")) | asyncio.run(main())
    (rule,) = (r for r in one(render(values), "Role")["rules"] if "configmaps" in r["resources"])
    assert rule["resourceNames"] == ["chat-picker", "code-picker"]


class Kept:
    """Keeps pools and notes how they are configured."""

    def __init__(self) -> None:
        self.configs: list[str] = []

    def open(self, spec: PoolSpec, config: Config) -> Any:
        self.configs.append(config.source or config.problem)
        return SimpleNamespace(pool=Pool(spec.name), book=RuleBook())

    def change(self, spec: PoolSpec, config: Config) -> None:
        raise AssertionError(spec)

    def close(self, name: str) -> None:
        raise AssertionError(name)


def test_with_leader_election_it_grants_what_leading_and_handing_over_use() -> None:
    async def main() -> Rights:
        async with FakeKube() as kube:
            candidate = Candidate("models", lease_name("models", "qwen", ""), "qwen-epp-a-b_1")
            leader = Leadership(kube.access(), candidate)
            async with running(leader.run()):
                await until(lambda: leader.leads)
                await leader.release()
            return used(kube.requests)

    leases = asyncio.run(main())
    assert granted(read("high-availability")) == granted(read("gateway")) | leases


def test_without_a_pool_it_grants_pods_only() -> None:
    assert granted(read("standalone")) == {("", "pods", "list"), ("", "pods", "watch")}


def test_the_role_is_bound_to_the_account_of_the_pod_in_its_namespace() -> None:
    for name in ("gateway", "high-availability", "everything"):
        objects = render(read(name))
        (subject,) = one(objects, "RoleBinding")["subjects"]
        pod_spec = one(objects, "Deployment")["spec"]["template"]["spec"]
        assert subject["name"] == pod_spec["serviceAccountName"]
        assert subject["namespace"] == "models"
        assert pod_spec["automountServiceAccountToken"]
        made = [account["metadata"]["name"] for account in all_of(objects, "ServiceAccount")]
        assert made == ([] if name == "high-availability" else [subject["name"]])


AUTH: dict[str, Any] = {"monitoring": {"auth": True, "enabled": True}}


def test_if_the_cluster_is_asked_about_readers_a_cluster_role_grants_just_that() -> None:
    async def main() -> Rights:
        async with FakeKube() as kube:
            kube.reviews.users = {"token": "reader"}
            await Reviewer(kube.access(), ManualClock()).review("token", "get", "/metrics")
            return used(kube.requests)

    values = {**read("gateway"), **AUTH}
    assert granted(values, "ClusterRole") == asyncio.run(main())
    assert granted(values) == granted(read("gateway"))
    objects = render(values)
    assert "--metrics-endpoint-auth=true" in container(objects)["args"]
    binding = one(objects, "ClusterRoleBinding")
    assert binding["roleRef"]["name"] == one(objects, "ClusterRole")["metadata"]["name"]
    assert binding["subjects"] == one(objects, "RoleBinding")["subjects"]
    (scrape,) = one(objects, "ServiceMonitor")["spec"]["endpoints"]
    assert scrape["bearerTokenFile"] == "/var/run/secrets/kubernetes.io/serviceaccount/token"


def test_it_is_not_asked_and_nothing_is_granted_unless_told() -> None:
    objects = render(read("gateway"))
    assert "--metrics-endpoint-auth=false" in container(objects)["args"]
    flags = {"router": {"epp": {"flags": {"metrics-endpoint-auth": "true"}}}}
    assert "--metrics-endpoint-auth=true" in container(render({**POOL, **flags}))["args"]
    assert all_of(objects, "ClusterRole") == all_of(objects, "ClusterRoleBinding") == []


def test_a_picker_of_fixed_endpoints_that_asks_about_readers_gets_a_token_and_no_role() -> None:
    objects = render({**read("fixed-endpoints"), **AUTH})
    spec = one(objects, "Deployment", "qwen-epp")["spec"]["template"]["spec"]
    assert spec["automountServiceAccountToken"]
    assert all_of(objects, "Role") == []
    assert one(objects, "ClusterRoleBinding")["subjects"][0]["name"] == spec["serviceAccountName"]


def test_the_network_policy_admits_the_ports_of_the_picker() -> None:
    policy = one(render(read("gateway")), "NetworkPolicy")["spec"]
    admitted = {port["port"] for rule in policy["ingress"] for port in rule["ports"]}
    assert admitted == {port["name"] for port in container(render(read("gateway")))["ports"]}


def test_peers_are_limited_where_told_but_the_kubelet_always_may_ask() -> None:
    policy = one(render(read("fixed-endpoints")), "NetworkPolicy")["spec"]
    peers = {rule["ports"][0]["port"]: rule.get("from") for rule in policy["ingress"]}
    assert peers["grpc"] == [{"podSelector": {"matchLabels": {"app": "proxy"}}}]
    assert peers["metrics"] == [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}]
    assert peers["grpc-health"] is None


def test_only_replicas_reach_what_they_tell_each_other() -> None:
    objects = render(read("high-availability"), release="chat")
    rules = one(objects, "NetworkPolicy", "chat-epp")["spec"]["ingress"]
    (rule,) = [each for each in rules if {"port": "grpc-peers"} in each["ports"]]
    labels = one(objects, "Deployment", "chat-epp")["spec"]["template"]["metadata"]["labels"]
    assert rule["ports"] == [{"port": "grpc-peers"}]
    (peer,) = rule["from"]
    assert peer["podSelector"]["matchLabels"].items() <= labels.items()


def test_nobody_but_its_envoy_reaches_a_picker_that_speaks_plain_text() -> None:
    policy = one(render(read("standalone")), "NetworkPolicy")["spec"]
    admitted = {port["port"] for rule in policy["ingress"] for port in rule["ports"]}
    assert admitted == {"http", "grpc-health", "metrics"}
