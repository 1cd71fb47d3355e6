"""``epp serve`` for many pools of a fake cluster: whose request is whose, and who harms whom."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from epp import cli
from epp.local.fleet import free_port
from tests.support import ext_proc
from tests.support.clusters import (
    CONFIG_MAPS,
    OBJECTIVES,
    PODS,
    POLICIES,
    POOLS,
    REWRITES,
    kubeconfig,
)
from tests.support.ext_proc import Gateway
from tests.support.kube import FakeKube
from tests.support.pods import config_map, inference_pool, objective, pod, rewrite, rule
from tests.support.serving import NOT_SERVING, SERVING, Serving, answer, eventually, serving

FILTER = "envoy.filters.http.ext_proc"
ALL = "--all-pools"
CHAT, CODE = {"app": "chat"}, {"app": "code"}
CHAT_POD, CODE_POD = "127.0.0.2:8000", "127.0.0.3:8000"
#: Picks at random, with one plugin of a name of its own.
OWN = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- {name: mine, type: random-picker}
schedulingProfiles:
- {name: default, plugins: [{pluginRef: mine}]}
"""
WRONG = OWN.replace("random-picker", "no-such-plugin")


def put_pools(kube: FakeKube, **config: str) -> None:
    """Two pools with a pod each."""
    kube.put(POOLS, inference_pool("chat", labels=CHAT, config=config.get("chat", "")))
    kube.put(POOLS, inference_pool("code", labels=CODE, config=config.get("code", "")))
    kube.put(PODS, pod("chat-0", "127.0.0.2", labels=CHAT))
    kube.put(PODS, pod("code-0", "127.0.0.3", labels=CODE))


@contextlib.asynccontextmanager
async def picking(
    folder: Path, kube: FakeKube, *flags: str, pools: str = ALL
) -> AsyncIterator[Serving]:
    """A picker that is ready."""
    async with serving(folder, kubeconfig(folder, kube), *flags, endpoints=pools) as picker:
        await eventually(lambda: is_ready(picker))
        yield picker


async def is_ready(picker: Serving) -> bool:
    return await picker.health("readiness") == SERVING


def head(cluster: str, headers: dict[str, str] | None = None, *, ends: bool = False) -> Any:
    given = {"content-type": "application/json", "x-request-id": "r-1", **(headers or {})}
    message = ext_proc.request_head(given, ends=ends)
    if cluster:
        message.attributes[FILTER].fields["xds.cluster_name"].string_value = cluster
    return message


async def ask(gateway: Gateway, *, cluster: str = "", call: str = "") -> str:
    """The destination of one whole exchange, and the model if it is another one."""
    body = b'{"model": "public", "prompt": "x"}'
    async with gateway.stream([("epp-pool", call)] if call else ()) as stream:
        await stream.send(head(cluster), ext_proc.request_body(body, ends=True))
        destination = ext_proc.destination(await stream.read())
        sent = (await stream.read()).request_body.response.body_mutation.streamed_response.body
        await answer(stream)
    return destination if sent == body else f"{destination} as {json.loads(sent)['model']}"


async def refusal(
    gateway: Gateway, *, cluster: str = "", headers: dict[str, str] | None = None
) -> tuple[int, str]:
    """The status and the message that a request is refused with at its head; 0 if it is not."""
    async with gateway.stream() as stream:
        await stream.send(head(cluster, headers, ends=True))
        said = (await stream.read()).immediate_response
    if not said.body:
        return 0, ""
    return said.status.code, json.loads(said.body)["error"]["message"]


@pytest.fixture(autouse=True)
def no_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NAMESPACE", "POD_NAME", "KUBECONFIG"):
        monkeypatch.delenv(name, raising=False)


def test_each_request_goes_to_its_own_pools_pods(tmp_path: Path) -> None:
    async def main() -> None:
        async with FakeKube() as kube:
            put_pools(kube)
            kube.put(OBJECTIVES, objective("high", 7, pool="chat"))
            kube.put(REWRITES, rewrite("r", rule("public", to={"private": None}), pool="chat"))
            async with picking(tmp_path, kube) as picker:
                gateway = picker.gateway

                async def rewritten() -> bool:
                    return await ask(gateway, cluster="chat") == f"{CHAT_POD} as private"

                async def others_known() -> bool:
                    return await picker.metric('epp_stale_endpoints{name="code"}') == 1.0

                await eventually(rewritten)
                await eventually(others_known)
                code = "endpointpicker_code_default_original_dst"
                assert await ask(gateway, cluster=code) == CODE_POD
                assert await ask(gateway, call="default/code") == CODE_POD
                await counted_apart(picker)
                await shown_apart(picker)

    asyncio.run(main())


def requests(pool: str, target: str) -> str:
    labels = {
        "fairness_id": "default-flow", "inference_pool": pool, "model_name": "public",
        "priority": "0", "target_model_name": target,
    }  # fmt: skip
    pairs = ",".join(f'{name}="{value}"' for name, value in labels.items())
    return f"llm_d_epp_request_total{{{pairs}}}"


async def counted_apart(picker: Serving) -> None:
    assert await picker.metric(requests("code", "public")) == 2.0
    assert await picker.metric(requests("chat", "private"))
    assert await picker.metric(requests("code", "private")) is None
    for each in ("chat", "code"):
        assert await picker.metric(f'epp_stale_endpoints{{name="{each}"}}') == 1.0
    page = (await picker.get("/metrics"))[1]
    assert page.count("# TYPE llm_d_epp_request_total") == 1


async def shown_apart(picker: Serving) -> None:
    async def addresses(path: str) -> list[str]:
        return sorted(each["address"] for each in await picker.json(path))

    assert await addresses("/debug/pool") == [CHAT_POD, CODE_POD]
    assert await addresses("/debug/pool?pool=code") == [CODE_POD]
    assert (await picker.json("/debug/live?pool=chat"))["pool"] == "chat"
    assert await picker.json("/debug/live") == {"error": "which pool? Say pool=NAME: chat, code"}
    assert (await picker.get("/debug/pool?pool=none"))[0] == 404
    decisions = await picker.json("/debug/decisions?limit=2")
    assert [each["pool"] for each in decisions] == ["code", "code"]


def test_a_request_of_no_known_pool_is_refused_and_counted(tmp_path: Path) -> None:
    async def main() -> None:
        async with FakeKube() as kube:
            put_pools(kube)
            async with picking(tmp_path, kube) as picker:
                gateway = picker.gateway
                status, said = await refusal(gateway, cluster="outbound|80||x.default.svc")
                assert status == 404 and "'outbound|80||x.default.svc'" in said
                status, said = await refusal(gateway, headers={"epp-pool": "chat"})
                assert status == 503 and "xds.cluster_name" in said
                refused = 'epp_refused_requests_total{{reason="{}",status="{}"}}'
                assert await picker.metric(refused.format("rejected-unknown-pool", 404)) == 1.0
                assert await picker.metric(refused.format("rejected-no-pool", 503)) == 1.0

    asyncio.run(main())


def test_pools_come_and_go_and_take_what_is_known_of_them_along(tmp_path: Path) -> None:
    async def main() -> None:
        async with FakeKube() as kube:
            put_pools(kube)
            async with picking(tmp_path, kube) as picker:
                gateway = picker.gateway
                assert await ask(gateway, cluster="chat") == CHAT_POD
                kube.remove(POOLS, "chat")

                async def gone() -> bool:
                    return (await refusal(gateway, cluster="chat"))[0] == 404

                await eventually(gone)
                page = (await picker.get("/metrics"))[1]
                assert '"chat"' not in page and '"code"' in page
                assert await ask(gateway, cluster="code") == CODE_POD
                assert await is_ready(picker)
                kube.put(POOLS, inference_pool("third", labels=CHAT, ports=(8001,)))

                async def came() -> bool:
                    return (await refusal(gateway, cluster="third"))[0] == 0

                await eventually(came)
                assert await ask(gateway, cluster="third") == "127.0.0.2:8001"

                async def nothing_is_open() -> bool:
                    return (await picker.state())["open_exchanges"] == 0

                await eventually(nothing_is_open)  # no log tells why the callers left

    asyncio.run(main())


def test_a_request_under_way_ends_though_its_pool_is_gone(tmp_path: Path) -> None:
    async def main() -> None:
        async with FakeKube() as kube:
            put_pools(kube)
            async with picking(tmp_path, kube) as picker, picker.gateway.stream() as stream:
                await stream.send(head("chat"), ext_proc.request_body(b"{}", ends=True))
                assert ext_proc.destination(await stream.read()) == CHAT_POD
                await stream.read()
                kube.remove(POOLS, "chat")

                async def gone() -> bool:
                    return (await picker.get("/debug/pool?pool=chat"))[0] == 404

                await eventually(gone)
                await answer(stream)
                assert (await picker.state())["streams"] == 0

    asyncio.run(main())


def names_of(page: dict[str, Any]) -> list[str]:
    """The plugins of a page of the configuration that have names."""
    return [each["name"] for each in page["config"]["plugins"] if "name" in each]


async def source_of(picker: Serving, pool: str) -> str:
    return str((await picker.json(f"/debug/config?pool={pool}"))["source"])


async def current(picker: Serving, pool: str) -> float | None:
    return await picker.metric(f'epp_config_current{{inference_pool="{pool}"}}')


def test_each_pool_has_its_own_configuration_and_a_wrong_one_changes_nothing(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with FakeKube() as kube:
            kube.put(CONFIG_MAPS, config_map("mine", config_yaml=OWN))
            kube.put(CONFIG_MAPS, config_map("two", a=OWN, b=WRONG))
            put_pools(kube, chat="mine")
            async with picking(tmp_path, kube) as picker:
                assert await source_of(picker, "chat") == "ConfigMap mine/config.yaml"
                assert await source_of(picker, "code") == "built in"

                async def rests(pool: str) -> bool:
                    return await current(picker, pool) == 0.0

                kube.put(CONFIG_MAPS, config_map("mine", config_yaml=WRONG))
                await eventually(lambda: rests("chat"))
                page = await picker.json("/debug/config?pool=chat")
                assert "no-such-plugin" in page["lastError"]
                assert "mine" in names_of(page)
                assert await ask(picker.gateway, cluster="chat") == CHAT_POD

                kube.put(POOLS, inference_pool("chat", labels=CHAT, config="two/a"))

                async def read() -> bool:
                    return await source_of(picker, "chat") == "ConfigMap two/a"

                await eventually(read)
                assert await current(picker, "chat") == 1.0
                kube.put(POOLS, inference_pool("code", labels=CODE, config="two"))
                await eventually(lambda: rests("code"))
                assert "needs a key" in picker.log()
                assert await source_of(picker, "code") == "built in"
                assert await ask(picker.gateway, cluster="code") == CODE_POD
                kube.put(POOLS, inference_pool("chat", labels=CHAT))

                async def without() -> bool:
                    return await source_of(picker, "chat") == "built in"

                await eventually(without)

    asyncio.run(main())


def test_a_pool_whose_configuration_is_missing_or_wrong_is_served_by_the_processes(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with FakeKube() as kube:
            kube.put(CONFIG_MAPS, config_map("wrong", x=WRONG))
            put_pools(kube, chat="nowhere", code="wrong")
            async with picking(tmp_path, kube, f"--config-text={OWN}") as picker:
                for pool, at in (("chat", CHAT_POD), ("code", CODE_POD)):
                    assert await ask(picker.gateway, cluster=pool) == at
                    assert await current(picker, pool) == 0.0
                    assert "mine" in names_of(await picker.json(f"/debug/config?pool={pool}"))
                assert "there is no ConfigMap nowhere" in picker.log()
                kube.put(CONFIG_MAPS, config_map("nowhere", x=OWN))

                async def found() -> bool:
                    return await source_of(picker, "chat") == "ConfigMap nowhere/x"

                await eventually(found)

    asyncio.run(main())


def test_named_pools_are_all_waited_for_and_others_are_not_served(tmp_path: Path) -> None:
    async def main() -> None:
        async with FakeKube() as kube:
            put_pools(kube)
            named = "--pool-name=chat, late"
            async with serving(tmp_path, kubeconfig(tmp_path, kube), endpoints=named) as picker:

                async def waits() -> bool:
                    return "there is no InferencePool late" in picker.log()

                await eventually(waits)
                assert await picker.health("readiness") == NOT_SERVING
                kube.put(POOLS, inference_pool("late", labels=CODE))
                await eventually(lambda: is_ready(picker))
                assert await ask(picker.gateway, cluster="late") == CODE_POD
                assert (await refusal(picker.gateway, cluster="code"))[0] == 404
                kube.remove(POOLS, "late")

                async def gone() -> bool:
                    return (await refusal(picker.gateway, cluster="late"))[0] == 404

                await eventually(gone)
                assert await is_ready(picker)  # the others are served on

    asyncio.run(main())


def test_a_pools_own_port_needs_no_word_of_the_gateway(tmp_path: Path) -> None:
    async def main() -> None:
        chat, code = free_port(), free_port()
        async with FakeKube() as kube:
            put_pools(kube)
            kube.put(POOLS, inference_pool("chat", labels=CHAT, picker_port=chat))
            kube.put(POOLS, inference_pool("code", labels=CODE, picker_port=code))
            async with picking(tmp_path, kube, "--pool-ports") as picker:

                async def open_ports() -> bool:
                    return f"port {code}: what comes" in picker.log()

                await eventually(open_ports)
                async with Gateway(chat) as at_chat, Gateway(code) as at_code:
                    assert await ask(at_chat) == CHAT_POD
                    assert await ask(at_code, cluster="chat") == CODE_POD
                    assert await picker.health("readiness", port=code) == SERVING
                    kube.remove(POOLS, "code")

                    async def closed() -> bool:
                        return f"port {code}: closed" in picker.log()

                    await eventually(closed)
                    assert await ask(at_chat) == CHAT_POD

    asyncio.run(main())


def test_it_asks_for_each_collection_once_however_many_pools_there_are(tmp_path: Path) -> None:
    async def main() -> None:
        async with FakeKube() as kube:
            for number in range(20):
                labels = {"app": f"a-{number}"}
                kube.put(POOLS, inference_pool(f"p-{number}", labels=labels))
                kube.put(PODS, pod(f"pod-{number}", f"127.0.1.{number}", labels=labels))
            async with picking(tmp_path, kube) as picker:
                for number in (0, 7, 19):
                    at = await ask(picker.gateway, cluster=f"p-{number}")
                    assert at == f"127.0.1.{number}:8000"
                for collection in (PODS, POOLS, OBJECTIVES, REWRITES):
                    assert len(kube.asked("list", collection)) == 1
                assert not kube.asked("list", CONFIG_MAPS)

    asyncio.run(main())


def test_without_the_crd_of_pools_it_is_not_ready_and_says_why(tmp_path: Path) -> None:
    async def main() -> None:
        async with FakeKube() as kube:
            kube.faults.missing |= POLICIES | {POOLS, POOLS.replace("/v1/", "/v1alpha2/")}
            kube.faults.missing.add(POOLS.replace("k8s.io/v1", "x-k8s.io/v1alpha2"))
            flags = kubeconfig(tmp_path, kube)
            async with serving(tmp_path, flags, endpoints=ALL) as picker:

                async def said() -> bool:
                    return "InferencePool is not installed" in picker.log()

                await eventually(said)
                assert await picker.health("readiness") == NOT_SERVING
                assert await picker.health("liveness") == SERVING
                status, why = await refusal(picker.gateway, cluster="chat")
                assert status == 503 and "not known yet" in why

    asyncio.run(main())


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ((ALL, "--endpoints=127.0.0.1:1"), "--all-pools and --endpoints exclude each other"),
        (("--pool-name=a,b", "--endpoint-selector=x=y"), "several pools and --endpoint-selector"),
        ((ALL, "--pool-name=a"), "--all-pools and --pool-name exclude each other"),
    ],
)
def test_flags_that_exclude_each_other_are_refused(
    flags: tuple[str, ...], says: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["serve", "--grpc-port=0", *flags]) == 2
    assert says in capfd.readouterr().err
