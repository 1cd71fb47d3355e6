"""``epp serve`` as a process in a fake cluster: which objects it follows, and who leads."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path

import pytest

from epp.sim.options import EngineOptions
from tests.support import ext_proc
from tests.support.clusters import OBJECTIVES, PODS, POLICIES, POOLS, REWRITES, kubeconfig
from tests.support.engine import served
from tests.support.kube import FakeKube
from tests.support.pods import inference_pool, objective, pod, rewrite, rule
from tests.support.serving import NOT_SERVING, SERVING, Serving, complete, eventually, serving

LEASE = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
POOL = "--pool-name=pool"


async def is_ready(picker: Serving) -> bool:
    return await picker.health("readiness") == SERVING


async def hosts(picker: Serving) -> list[str]:
    return sorted(each["address"] for each in await picker.json("/debug/pool"))


async def loaded(picker: Serving) -> bool:
    pool = await picker.json("/debug/pool")
    return bool(pool) and all(each["load"] is not None for each in pool)


def cluster(kube: FakeKube, *hosts: str) -> None:
    kube.put(POOLS, inference_pool())
    for number, host in enumerate(hosts):
        kube.put(PODS, pod(f"p-{number}", host))


async def exchanged(picker: Serving) -> tuple[bytes, bytes]:
    """What a request for "public" becomes, and the answer of a model called "private"."""
    body, kind = b'{"model": "public", "prompt": "x"}', {"content-type": "application/json"}
    async with picker.gateway.stream() as stream:
        await stream.send(ext_proc.request_head(kind), ext_proc.request_body(body, ends=True))
        assert ext_proc.destination(await stream.read()) == "127.0.0.2:8000"
        sent = (await stream.read()).request_body.response.body_mutation.streamed_response.body
        await stream.send(ext_proc.response_head(kind))
        await stream.read()
        answer = b""
        for piece, ends in ((b'{"model":"priv', False), (b'ate","id":1}', True)):
            await stream.send(ext_proc.response_body(piece, ends=ends))
            said = (await stream.read()).response_body.response.body_mutation
            answer += said.streamed_response.body
    return bytes(sent), answer


@pytest.fixture(autouse=True)
def no_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NAMESPACE", "POD_NAME", "KUBECONFIG"):
        monkeypatch.delenv(name, raising=False)


def test_it_follows_the_pool_and_rewrites_models(tmp_path: Path) -> None:
    async def main() -> None:
        async with FakeKube() as kube:
            cluster(kube, "127.0.0.2")
            kube.put(OBJECTIVES, objective("high", 7))
            kube.put(REWRITES, rewrite("r", rule("public", to={"private": None})))
            async with serving(tmp_path, kubeconfig(tmp_path, kube), endpoints=POOL) as picker:
                await eventually(lambda: is_ready(picker))

                async def rewritten() -> bool:
                    return (await exchanged(picker))[0] == b'{"model": "private", "prompt": "x"}'

                await eventually(rewritten)
                assert (await exchanged(picker))[1] == b'{"model":"public","id":1}'
                kube.remove(REWRITES, "r")
                await asyncio.sleep(0.3)
                assert b"public" in (await exchanged(picker))[0]

    asyncio.run(main())


def test_a_deleted_pool_makes_it_not_ready_and_leaves_it_alive(tmp_path: Path) -> None:
    async def main() -> None:
        async with FakeKube() as kube:
            cluster(kube, "127.0.0.2")
            async with serving(tmp_path, kubeconfig(tmp_path, kube), endpoints=POOL) as picker:
                await eventually(lambda: is_ready(picker))
                kube.remove(POOLS, "pool")

                async def refuses() -> bool:
                    return await picker.health("readiness") == NOT_SERVING

                await eventually(refuses)
                assert await picker.health("liveness") == SERVING
                assert (await picker.get("/readyz"))[0] == 503
                assert await hosts(picker) == []

    asyncio.run(main())


GRPC_CONFIG = """
plugins: [{type: vllmgrpc-parser}]
requestHandler: {parsers: [{pluginRef: vllmgrpc-parser}]}
"""


def test_a_parser_that_can_read_nothing_of_the_pool_makes_it_not_ready(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(GRPC_CONFIG)

    async def main() -> None:
        async with FakeKube() as kube:
            cluster(kube, "127.0.0.2")  # the pool's appProtocol is http
            flags = (kubeconfig(tmp_path, kube), f"--config-file={config}")
            async with serving(tmp_path, *flags, endpoints=POOL) as picker:

                async def said() -> bool:
                    assert await picker.health("readiness") == NOT_SERVING
                    return "appProtocol is http, which vllmgrpc-parser cannot be" in picker.log()

                await eventually(said)
                assert await picker.health("liveness") == SERVING
                speaking = inference_pool()
                speaking["spec"]["appProtocol"] = "kubernetes.io/h2c"
                kube.put(POOLS, speaking)
                await eventually(lambda: is_ready(picker))

    asyncio.run(main())


def test_a_credential_plugin_that_fails_is_asked_again_and_its_failures_are_lines_of_the_log(
    tmp_path: Path,
) -> None:
    plugin, file = tmp_path / "plugin", tmp_path / "exec.yaml"
    plugin.write_text("#!/bin/sh\nexit 1\n")
    plugin.chmod(0o755)
    user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(plugin),
                     "interactiveMode": "Never"}}  # fmt: skip
    status = {"token": "good"}
    told = {"apiVersion": user["exec"]["apiVersion"], "kind": "ExecCredential", "status": status}

    async def main() -> None:
        async with FakeKube(tokens={"good"}) as kube:
            cluster(kube, "127.0.0.2")
            flag = kubeconfig(tmp_path, kube)
            written = json.loads(Path(flag.partition("=")[2]).read_text())
            written["users"][0]["user"] = user
            file.write_text(json.dumps(written))
            async with serving(tmp_path, f"--kubeconfig={file}", endpoints=POOL) as picker:

                async def said() -> bool:
                    return f"credential plugin {plugin} ended with 1" in picker.log()

                await eventually(said)
                assert await picker.health("readiness") == NOT_SERVING
                assert await picker.health("liveness") == SERVING
                plugin.write_text(f"#!/bin/sh\necho '{json.dumps(told)}'\n")
                await eventually(lambda: is_ready(picker))
                lines = picker.log().splitlines()
                assert [line for line in lines if not line.startswith("{")] == []

    asyncio.run(main())


def test_pods_are_followed_by_labels_without_a_pool(tmp_path: Path) -> None:
    async def main() -> None:
        async with FakeKube() as kube:
            kube.put(PODS, pod("a", "127.0.0.2"))
            kube.faults.missing |= POLICIES | {POOLS}
            flags = (kubeconfig(tmp_path, kube), "--endpoint-target-ports=8000,8001")
            chosen = "--endpoint-selector=app=vllm"
            async with serving(tmp_path, *flags, endpoints=chosen) as picker:
                await eventually(lambda: is_ready(picker))
                assert await hosts(picker) == ["127.0.0.2:8000", "127.0.0.2:8001"]

    asyncio.run(main())


def test_of_two_replicas_one_is_ready_and_its_end_is_the_others_turn(tmp_path: Path) -> None:
    """The other one is warm: it follows and scrapes as the leader does, and serves if asked."""

    async def main() -> None:
        async with FakeKube() as kube, served(EngineOptions(kv_blocks=64)) as [(_, port)]:
            cluster(kube, "127.0.0.1")
            kube.put(POOLS, inference_pool(ports=(port,)))
            flags = (
                kubeconfig(tmp_path, kube),
                "--ha-enable-leader-election",
                "--drain-timeout=1s",
            )
            first_folder, second_folder = tmp_path / "1", tmp_path / "2"
            first_folder.mkdir()
            second_folder.mkdir()
            async with serving(first_folder, *flags, endpoints=POOL) as first:
                await eventually(lambda: is_ready(first))
                async with serving(second_folder, *flags, endpoints=POOL) as second:
                    await eventually(lambda: loaded(second))
                    assert await complete(second.gateway) == f"127.0.0.1:{port}"
                    assert await second.health("readiness") == NOT_SERVING
                    assert await second.health("liveness") == SERVING
                    assert (await second.get("/readyz"))[0] == 503
                    assert await first.metric("epp_leader") == 1.0
                    assert await second.metric("epp_leader") == 0.0
                    first.signal(signal.SIGTERM)
                    while not await is_ready(second):
                        await complete(first.gateway)  # not ready, and yet it serves
                    await complete(second.gateway)
                    second.child.kill()  # it would look for a successor too
            (lease,) = kube.objects.collection(LEASE)
            assert lease == "epp-default-pool.llm-d.ai"

    asyncio.run(main())


def test_requests_during_a_rolling_update_go_to_no_pod_that_is_leaving(tmp_path: Path) -> None:
    """A destination may be as old as a change needs to arrive, and no request is refused."""
    late = 0.5  #: seconds that a change may need, on a busy machine
    left: dict[str, float] = {}
    asked: set[str] = set()

    async def ask_until(rolled: asyncio.Event, picker: Serving) -> None:
        loop = asyncio.get_running_loop()
        while not rolled.is_set():
            began = loop.time()
            destination = await complete(picker.gateway)
            assert began - left.get(destination, began) < late, destination
            asked.add(destination)

    async def roll(kube: FakeKube, count: int) -> None:
        for number in range(count):
            kube.put(PODS, pod(f"new-{number}", f"127.0.1.{number}"))
            await asyncio.sleep(0.05)
            kube.put(PODS, pod(f"p-{number}", f"127.0.0.{number + 2}", deleting=True))
            left[f"127.0.0.{number + 2}:8000"] = asyncio.get_running_loop().time()
            await asyncio.sleep(0.05)
            kube.remove(PODS, f"p-{number}")

    async def main() -> None:
        async with FakeKube() as kube:
            cluster(kube, *(f"127.0.0.{number + 2}" for number in range(20)))
            async with serving(tmp_path, kubeconfig(tmp_path, kube), endpoints=POOL) as picker:
                await eventually(lambda: is_ready(picker))
                rolled = asyncio.Event()
                async with asyncio.TaskGroup() as callers:
                    for _ in range(4):
                        callers.create_task(ask_until(rolled, picker))
                    await roll(kube, 20)
                    await asyncio.sleep(late)
                    rolled.set()
                assert await hosts(picker) == sorted(f"127.0.1.{n}:8000" for n in range(20))
                assert asked & {f"127.0.1.{number}:8000" for number in range(20)}
                state = await picker.state()
                assert state["open_exchanges"] == 0

    asyncio.run(main())
