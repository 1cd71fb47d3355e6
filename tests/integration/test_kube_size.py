"""What two thousand pods cost: a process of its own, so that its memory is its own."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import msgspec

from tests.support.clusters import POOLS, kubeconfig
from tests.support.kube import FakeKube
from tests.support.pods import inference_pool
from tests.support.serving import eventually, serving

PODS = "/api/v1/namespaces/default/pods"
COUNT = 2_000
TRIES = 3  #: other work on the machine makes one slow
BOUND_SECONDS = 60.0

FOLLOW = """
import asyncio, json, sys, time
from pathlib import Path
from epp.kube.access import Access
from epp.kube.client import Kube
from epp.kube.identity.credentials import Credential, Fixed
from epp.kube.reflect import Habits, Reflector

def memory(name):  # ru_maxrss would be the parent's
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(name))

async def main(url, count, last):
    changed, stall = set(), 0.0
    put = lambda it: changed.add(it["metadata"]["name"] + it["metadata"].get("labels", {}).get("n", ""))
    async with Kube(Access(url, "default", Fixed(Credential()))) as kube:
        reflector = Reflector(kube, sys.argv[3], on_put=put, on_gone=lambda it: None)
        began = time.monotonic()
        cpu = time.process_time()
        task = asyncio.create_task(reflector.run())
        before = time.monotonic()
        while not reflector.synced:
            await asyncio.sleep(0.001)
            now = time.monotonic()
            stall, before = max(stall, now - before), now
        told = {"list": time.monotonic() - began, "cpu": time.process_time() - cpu, "stall": stall}
        told["objects"] = len(changed)
        told["resident"] = memory("VmRSS")
        print("listed", flush=True)
        while not any(name.endswith("changed") for name in changed):
            await asyncio.sleep(0.001)
        began = time.monotonic()
        while last not in changed:
            await asyncio.sleep(0.001)
        told["watch"] = time.monotonic() - began
        told["peak"] = memory("VmHWM")
        print(json.dumps(told), flush=True)
        task.cancel()

asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[4]))
"""


def pod(index: int, **labels: str) -> dict[str, Any]:
    """About 7 kB, half of it managed fields, as a real one."""
    variables = [{"name": f"VARIABLE_{n}", "value": f"value-{index}-{n}"} for n in range(25)]
    container = {
        "name": "server",
        "image": "registry.example.org/llm/server@sha256:" + "0" * 64,
        "args": [f"--argument-{n}=value" for n in range(15)],
        "env": variables,
        "resources": {"limits": {"nvidia.com/gpu": "8"}, "requests": {"cpu": "8"}},
    }
    fields = {f"f:field-{n}": {"f:inner": {}, ".": {}} for n in range(130)}
    conditions = [
        {"type": kind, "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready")
    ]
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {
            "name": f"server-{index:05d}",
            "labels": {"app": "server", "pod-template-hash": "7d9c5b8f6", **labels},
            "annotations": {"prometheus.io/scrape": "true"},
            "managedFields": [{"manager": "kubelet", "fieldsV1": fields}],
        },
        "spec": {"nodeName": f"node-{index // 8}", "containers": [container]},
        "status": {
            "phase": "Running",
            "podIP": f"127.{100 + (index >> 8)}.{index & 255}.7",
            "conditions": conditions,
        },
    }


async def _follow(server: FakeKube) -> dict[str, float]:
    last = f"server-{COUNT - 1:05d}changed"
    arguments = ["-c", FOLLOW, server.url, str(COUNT), PODS, last]
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(BOUND_SECONDS):
            assert await process.stdout.readline() == b"listed\n"
            for index in range(COUNT - 200, COUNT):
                server.put(PODS, pod(index, n="changed"))
            return msgspec.json.decode(await process.stdout.readline())
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _told() -> dict[str, float]:
    async with FakeKube() as server:
        for index in range(COUNT):
            server.objects.put(PODS, pod(index))
        size = len(msgspec.json.encode(pod(1)))
        assert 6_000 < size < 8_000
        return await _follow(server)


def test_two_thousand_pods_are_read_and_followed_within_2_seconds_and_100_megabytes() -> None:
    """The ceilings are the requirement's; alone on a machine it takes 0.7 s and 75 MB."""
    for _ in range(TRIES):
        told = asyncio.run(_told())
        assert told["objects"] == COUNT
        assert told["resident"] <= told["peak"] < 100
        in_time = told["list"] + told["watch"] < 2.0  # the fake server's own work included
        if in_time and told["cpu"] < 1.0 and told["stall"] < 0.5:  # requests are answered meanwhile
            return
    raise AssertionError(f"{TRIES} times too slow, at last {told}")


def test_a_picker_that_follows_two_thousand_pods_takes_150_megabytes_at_most(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with FakeKube() as server:
            server.put(POOLS, inference_pool(labels={"app": "server"}))
            for index in range(COUNT):
                server.objects.put(PODS, pod(index))
            flags = (kubeconfig(tmp_path, server), "--refresh-metrics-interval=10s")
            async with serving(tmp_path, *flags, endpoints="--pool-name=pool") as picker:

                async def known(host: str) -> bool:
                    return f'"{host}' in (await picker.get("/debug/pool"))[1]

                async def ready() -> bool:
                    return (await picker.get("/readyz"))[0] == 200

                await eventually(ready, bound=BOUND_SECONDS)
                assert len(await picker.json("/debug/pool")) == COUNT
                for index in range(COUNT - 200, COUNT):
                    changed = pod(index)
                    changed["status"]["podIP"] = f"127.90.0.{index - COUNT + 201}"
                    server.put(PODS, changed)
                await eventually(lambda: known("127.90.0.200"), bound=BOUND_SECONDS)
                assert picker.memory() < 150

    asyncio.run(main())
