"""One picker for the pools of a namespace, with the rights for just their ConfigMaps."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec

from tests.support.cluster.install import Installed
from tests.support.cluster.replicas import Replicas, replicas
from tests.support.serving import eventually

#: One plugin has a name of its own, by which the configuration is known.
OWN = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- {name: mine, type: random-picker}
schedulingProfiles:
- {name: default, plugins: [{pluginRef: mine}]}
"""
VALUES = {"pools": {"all": True, "configMaps": ["allowed"]}}


async def add_pool(release: Installed, name: str, config: str = "") -> None:
    service = {"name": "pool-epp", "port": {"number": 9002}}
    await release.add({
        "apiVersion": "inference.networking.k8s.io/v1",
        "kind": "InferencePool",
        "metadata": {"name": name, "annotations": {"epp/config": config} if config else {}},
        "spec": {
            "selector": {"matchLabels": {"app": name}},
            "targetPorts": [{"number": 8000}],
            "endpointPickerRef": service,
        },
    })  # fmt: skip


async def add_config(release: Installed, name: str) -> None:
    about = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}
    await release.add({**about, "data": {"config.yaml": OWN}})


async def source_of(it: Replicas, pool: str) -> str:
    page: dict[str, Any] = msgspec.json.decode(
        (await it.picker.get(f"/debug/config?pool={pool}")).body
    )
    return str(page.get("source"))


def test_pools_come_and_go_each_with_its_pods_and_its_configuration(tmp_path: Path) -> None:
    async def main() -> None:
        async with replicas(tmp_path, values=VALUES) as it:
            await it.is_ready()
            for name in ("allowed", "forbidden"):
                await add_config(it.release, name)
            await add_pool(it.release, "chat", "allowed")
            await add_pool(it.release, "code", "forbidden")
            await it.pods.start("chat-0", "127.77.0.1", labels={"app": "chat"})
            await it.pods.start("code-0", "127.77.0.2", labels={"app": "code"})
            await it.picker.has(["chat-0", "code-0"])

            async def read() -> bool:
                return "ConfigMap allowed/config.yaml" in await source_of(it, "chat")

            await eventually(read, bound=20.0)
            assert "ConfigMap" not in await source_of(it, "code")
            path = it.release.path("inference.networking.k8s.io/v1", "inferencepools", "chat")
            await it.release.remove(path)
            await it.picker.has(["code-0"])
            assert await it.picker.ready()

    asyncio.run(main())
