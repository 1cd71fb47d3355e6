"""The real picker, started with the chart's arguments, files and objects in a fake cluster."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from epp.local.fleet import free_port
from tests.support.chart import Objects, all_of, container, one, read, render
from tests.support.clusters import OBJECTIVES, PODS, POOLS, kubeconfig
from tests.support.kube import FakeKube
from tests.support.pods import pod
from tests.support.serving import SERVING, eventually, serving

#: Where it listens and with what certificate; here it is on free loopback ports, in plain text.
PLACES = ("--grpc-port", "--grpc-health-port", "--metrics-port", "--secure-serving", "--cert-path")


def mounted(objects: Objects, folder: Path) -> list[str]:
    """The arguments, with the ConfigMap's files in ``folder``."""
    for each in all_of(objects, "ConfigMap"):
        for name, text in each["data"].items():
            (folder / name).write_text(text)
    arguments = container(objects)["args"]
    port = free_port()  # where it finds itself, as the first replica does
    here = {"--peers": f"--peers=127.0.0.1:{port}", "--peers-port": f"--peers-port={port}"}
    return [
        here.get(each.partition("=")[0], each.replace("/config/", f"{folder}/"))
        for each in arguments
        if each.partition("=")[0] not in PLACES
    ]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAMESPACE", "default")
    monkeypatch.setenv("POD_NAME", "chat-epp-5d4f-x2x")


async def gets_ready(name: str, folder: Path) -> list[str]:
    """Start it as the values file says; return the endpoints it knows, and what it warns of."""
    values: dict[str, Any] = read(name)
    values["pool"]["matchLabels"] = {"app": "vllm"}
    values["tracing"] = {"enabled": False}
    objects = render(values, release="chat", namespace="default")
    probes = [
        container(objects)[kind]["grpc"]["service"]
        for kind in ("startupProbe", "livenessProbe", "readinessProbe")
    ]
    async with FakeKube() as kube:
        for pool in all_of(objects, "InferencePool"):
            kube.put(POOLS, pool)
        for objective in all_of(objects, "InferenceObjective"):
            kube.put(OBJECTIVES, objective)
        kube.put(PODS, pod("a", "127.0.0.2"))
        first, *rest = mounted(objects, folder)
        async with serving(folder, *rest, kubeconfig(folder, kube), endpoints=first) as it:

            async def all_serve() -> bool:
                return [await it.health(each) for each in probes] == [SERVING] * len(probes)

            await eventually(all_serve)
            known = sorted(each["address"] for each in await it.json("/debug/pool"))
            return known + re.findall(r".*warn.*", it.log())


def test_it_gets_ready_knows_the_pods_and_warns_of_nothing(tmp_path: Path) -> None:
    names = {"gateway": 1, "high-availability": 1, "standalone": 2, "everything": 2}

    async def main() -> list[list[str]]:
        for name in names:
            (tmp_path / name).mkdir()
        return await asyncio.gather(*(gets_ready(name, tmp_path / name) for name in names))

    for (name, ports), known in zip(names.items(), asyncio.run(main()), strict=True):
        assert known == [f"127.0.0.2:{8000 + number}" for number in range(ports)], name


def test_a_changed_config_map_is_read_without_a_restart(tmp_path: Path) -> None:
    values = read("everything") | {"tracing": {"enabled": False}}
    objects = render(values, release="chat", namespace="default")

    async def main() -> None:
        async with FakeKube() as kube:
            kube.put(POOLS, one(objects, "InferencePool"))
            first, *rest = mounted(objects, tmp_path)
            async with serving(tmp_path, *rest, kubeconfig(tmp_path, kube), endpoints=first) as it:
                assert "kv-cache-utilization-scorer" not in str(await it.json("/debug/config"))
                text = (tmp_path / "config.yaml").read_text()
                (tmp_path / "config.yaml").write_text(
                    text.replace("queue-scorer", "kv-cache-utilization-scorer")
                )

                async def read_again() -> bool:
                    return "kv-cache-utilization-scorer" in str(await it.json("/debug/config"))

                await eventually(read_again)

    asyncio.run(main())
