"""The cluster takes every object that the chart renders and that stands ready to be copied."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from epp.kube.errors import KubeError
from tests.support.chart import PROVIDERS, VALUES, read, render
from tests.support.cluster.admin import Admin, NotServed
from tests.support.cluster.install import namespace
from tests.support.cluster.server import api_server

MANIFESTS = Path(__file__).parents[2] / "gateway/kubernetes"
FILES = sorted(path.stem for path in VALUES.glob("*.yaml"))
GUARDED = {**read("gateway"), "monitoring": {"auth": True}}
#: What every cluster has; kinds of gateways and monitors only where they are installed.
ALWAYS = {
    "ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding", "ConfigMap",
    "Deployment", "Service", "NetworkPolicy", "PodDisruptionBudget", "InferencePool",
    "InferenceObjective",
}  # fmt: skip


async def taken(admin: Admin, space: str, objects: Iterable[dict[str, Any]]) -> set[str]:
    """The kinds that the cluster serves; it is to take all objects of these."""
    kinds: set[str] = set()
    for each in objects:
        try:
            await admin.apply(each, space, dry=True)
        except NotServed:
            continue
        except KubeError as error:
            raise AssertionError(f"{each['kind']} {each['metadata']['name']}: {error}") from error
        kinds.add(each["kind"])
    return kinds


def test_the_cluster_takes_what_the_chart_renders_of_every_values_file() -> None:
    async def main() -> None:
        async with api_server() as (_, admin), namespace(admin) as (space, _):
            kinds: set[str] = set()
            for values in (*map(read, FILES), GUARDED):
                kinds |= await taken(admin, space, render(values, namespace=space))
            assert kinds >= ALWAYS

    asyncio.run(main())


def test_the_cluster_takes_what_the_chart_renders_for_every_provider() -> None:
    async def main() -> None:
        async with api_server() as (_, admin), namespace(admin) as (space, _):
            for provider in PROVIDERS:
                values = read("everything") | {"provider": {"name": provider}}
                kinds = await taken(admin, space, render(values, namespace=space))
                assert kinds >= {"Deployment", "InferencePool", "Role"}

    asyncio.run(main())


def test_the_cluster_takes_the_manifests_to_copy() -> None:
    async def main() -> None:
        async with api_server() as (_, admin), namespace(admin) as (space, _):
            for file in sorted(MANIFESTS.glob("*.yaml")):
                objects = list(yaml.safe_load_all(file.read_text()))
                kinds = await taken(admin, space, objects)
                assert ("InferencePool" in kinds) == any(
                    each["kind"] == "InferencePool" for each in objects
                )

    asyncio.run(main())


def test_a_field_that_there_is_not_is_refused() -> None:
    """Else the tests above would say nothing."""

    async def main() -> None:
        async with api_server() as (_, admin), namespace(admin) as (space, _):
            for kind, at in (("Service", "spec"), ("InferencePool", "spec")):
                it = next(o for o in render(read("gateway"), namespace=space) if o["kind"] == kind)
                it[at]["typo"] = 1
                try:
                    await admin.apply(it, space, dry=True)
                except KubeError as error:
                    assert "typo" in str(error)
                else:
                    raise AssertionError(f"{kind} with a typo was taken")

    asyncio.run(main())
