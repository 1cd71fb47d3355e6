"""Two pools behind one real Envoy and one picker: every way in which a gateway says which is meant."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from epp.gateway.options import GatewayOptions
from epp.gateway.render import render
from epp.local.fleet import envoy_binary, free_port
from epp.sim.options import EngineOptions
from tests.support import engine, http1
from tests.support.clusters import PODS, POOLS, kubeconfig
from tests.support.kube import FakeKube
from tests.support.pods import inference_pool, pod
from tests.support.process import Process
from tests.support.serving import SERVING, Serving, eventually, serving

EXT_PROC = "type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3"


def told_otherwise(bootstrap: str) -> str:
    """Add routes to chat's cluster that say ``code`` in the other ways that Envoy has."""
    whole: dict[str, Any] = yaml.safe_load(bootstrap)
    listener = whole["staticResources"]["listeners"][0]
    manager = listener["filterChains"][0]["filters"][0]["typedConfig"]
    picker = next(f for f in manager["httpFilters"] if f["name"].endswith("ext_proc"))
    picker["typedConfig"]["requestAttributes"] += ["xds.route_name", "xds.route_metadata"]
    initial = [{"key": "epp-pool", "value": "default/code"}]
    per_route = {"@type": f"{EXT_PROC}.ExtProcPerRoute",
                 "overrides": {"grpcInitialMetadata": initial}}  # fmt: skip
    gateway = {"per_route_rule_inference_pool": "default/code/epp/9002/duplex/false"}
    manager["routeConfig"]["virtualHosts"][0]["routes"] += [
        _route("call", typedPerFilterConfig={"envoy.filters.http.ext_proc": per_route}),
        _route("metadata", metadata={"filterMetadata": {"epp": {"pool": "code"}}}),
        _route("ai", metadata={"filterMetadata": {"aigateway.envoy.io": gateway}}),
        _route("nobody", cluster="picker"),
    ]
    return yaml.safe_dump(whole)


def _route(name: str, *, cluster: str = "chat", **more: Any) -> dict[str, Any]:
    action = {"cluster": cluster, "timeout": "0s", "prefixRewrite": "/"}
    return {"name": name, "match": {"prefix": f"/{name}/"}, "route": action, **more}


@contextlib.asynccontextmanager
async def envoy(folder: Path, picker: Serving) -> AsyncIterator[int]:
    """A real Envoy before the picker; yields its port."""
    options = GatewayOptions(
        pools=("chat", "code"), listen_port=free_port(), admin_port=free_port(),
        picker_port=picker.ports.grpc, picker_tls=False,
    )  # fmt: skip
    bootstrap = folder / "envoy.yaml"
    bootstrap.write_text(told_otherwise(render(options)))
    command = [envoy_binary(), "-c", str(bootstrap), "--concurrency", "1", "--use-dynamic-base-id"]
    process = Process("envoy", [*command, "--log-level", "warn"], folder)
    process.start()
    try:

        async def listens() -> bool:
            assert process.running, process.tail()
            with contextlib.suppress(OSError):
                await http1.request(options.listen_port, "GET", "/", {}, b"")
                return True
            return False

        await eventually(listens)
        yield options.listen_port
    finally:
        process.kill()


@pytest.fixture(autouse=True)
def no_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NAMESPACE", "POD_NAME", "KUBECONFIG"):
        monkeypatch.delenv(name, raising=False)


def test_a_request_reaches_the_pool_that_its_route_means(tmp_path: Path) -> None:
    async def main() -> None:
        options = [EngineOptions(name=name) for name in ("chat", "code")]
        async with engine.served(*options) as engines, FakeKube() as kube:
            for (_, port), name in zip(engines, ("chat", "code"), strict=True):
                labels = {"app": name}
                kube.put(POOLS, inference_pool(name, labels=labels, ports=(port,)))
                kube.put(PODS, pod(f"{name}-0", "127.0.0.1", labels=labels))
            flags = kubeconfig(tmp_path, kube)
            async with serving(tmp_path, flags, endpoints="--all-pools") as picker:

                async def ready() -> bool:
                    return await picker.health("readiness") == SERVING

                await eventually(ready)
                async with envoy(tmp_path, picker) as port:
                    await ask_all(port)

    asyncio.run(main())


async def ask_all(port: int) -> None:
    for route, pool in {
        "chat": "chat", "code": "code", "call": "code", "metadata": "code", "ai": "code",
    }.items():  # fmt: skip
        answer = await _ask(port, route)
        assert (answer.status, answer.headers.get("x-engine-name")) == (200, pool), route
    refused = await _ask(port, "nobody")
    assert refused.status == 404
    assert json.loads(refused.body)["error"]["type"] == "NotFoundError"


async def _ask(port: int, route: str) -> Any:
    body = json.dumps({"model": "sim", "prompt": "hello", "max_tokens": 1}).encode()
    headers = {"content-type": "application/json"}
    return await http1.request(port, "POST", f"/{route}/v1/completions", headers, body)
