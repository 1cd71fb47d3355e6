"""Field problems of endpoints behind gateways with several routes."""

from __future__ import annotations

import asyncio
import contextlib
import copy
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from epp.gateway.options import GatewayOptions
from epp.gateway.render import render
from epp.headers import DESTINATION
from epp.local.fleet import envoy_binary, free_port
from epp.local.processes import STOP_SECONDS
from epp.sim.options import EngineOptions
from epp.sim.server import NAME_HEADER
from tests.support import chart, engine, ext_proc, http1
from tests.support.serving import Serving, at_rest, eventually, prompt_body, serving

COMPLETIONS = "/v1/completions"
PER_ROUTE = "type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExtProcPerRoute"


def the(config: dict[str, Any], kind: str) -> dict[str, Any]:
    """The HTTP filter of a kind; it is the bootstrap's only one."""
    (listener,) = config["staticResources"]["listeners"]
    manager = listener["filterChains"][0]["filters"][0]["typedConfig"]
    return next(each for each in manager["httpFilters"] if each["name"].endswith(kind))


def with_second_picker(text: str, port: int) -> dict[str, Any]:
    """A bootstrap whose requests for b.example are another picker's, as gateways write routes."""
    config = yaml.safe_load(text)
    clusters = config["staticResources"]["clusters"]
    second = copy.deepcopy(next(each for each in clusters if each["name"] == "picker"))
    second["name"] = second["loadAssignment"]["clusterName"] = "second"
    (place,) = second["loadAssignment"]["endpoints"][0]["lbEndpoints"]
    place["endpoint"]["address"]["socketAddress"]["portValue"] = port
    clusters.append(second)
    (listener,) = config["staticResources"]["listeners"]
    manager = listener["filterChains"][0]["filters"][0]["typedConfig"]
    hosts = manager["routeConfig"]["virtualHosts"]
    other = {**copy.deepcopy(hosts[0]), "name": "b", "domains": ["b.example"]}
    service = copy.deepcopy(the(config, "ext_proc")["typedConfig"]["grpcService"])
    service["envoyGrpc"]["clusterName"] = "second"
    for route in other["routes"]:
        route["typedPerFilterConfig"] = {
            the(config, "ext_proc")["name"]: {
                "@type": PER_ROUTE,
                "overrides": {"grpcService": service},
            }
        }
    hosts.append(other)
    return dict(config)


@contextlib.asynccontextmanager
async def gateway(folder: Path, first: int, second: int) -> Any:
    port, admin = free_port(), free_port()
    options = GatewayOptions(
        mode="stock", listen_port=port, admin_port=admin, picker_port=first, picker_tls=False
    )
    file = folder / "envoy.yaml"
    file.write_text(yaml.safe_dump(with_second_picker(render(options), second)))
    process = await asyncio.create_subprocess_exec(
        envoy_binary(), "-c", str(file), "--disable-hot-restart", "--log-level", "error"
    )

    async def up() -> bool:
        assert process.returncode is None
        with contextlib.suppress(OSError):
            return (await http1.request(admin, "GET", "/ready")).status == 200
        return False

    try:
        await eventually(up, bound=20.0)
        yield port
    finally:
        process.kill()
        async with asyncio.timeout(STOP_SECONDS):
            await process.wait()


async def ask(port: int, host: str) -> str:
    """Ask as a client of ``host``; return which engine answered."""
    body = msgspec.json.encode({"model": "sim", "prompt": "hello", "max_tokens": 1})
    async with http1.Connection(port) as connection:
        lines = [f"POST {COMPLETIONS} HTTP/1.1", f"host: {host}", f"content-length: {len(body)}",
                 "content-type: application/json", "", ""]  # fmt: skip
        await connection.send("\r\n".join(lines).encode() + body)
        answer = await connection.read()
    assert answer.status == 200, answer
    return answer.headers[NAME_HEADER]


@pytest.mark.e2e
def test_b063_of_two_pools_on_a_gateway_each_is_asked_by_its_own_picker(tmp_path: Path) -> None:
    """Field problem B063 (istio/istio#58392): only the first pool's picker was applied."""

    async def picker(stack: contextlib.AsyncExitStack, name: str) -> Serving:
        ((_, port),) = await stack.enter_async_context(engine.served(EngineOptions(name=name)))
        (tmp_path / name).mkdir()
        told = f"--endpoints=127.0.0.1:{port}"
        return await stack.enter_async_context(serving(tmp_path / name, endpoints=told))

    async def main() -> None:
        async with contextlib.AsyncExitStack() as stack:
            first, second = [await picker(stack, name) for name in ("a", "b")]
            way = gateway(tmp_path, first.ports.grpc, second.ports.grpc)
            port = await stack.enter_async_context(way)
            for _ in range(3):
                assert await ask(port, "a.example") == "a"
                assert await ask(port, "b.example") == "b"
            for each in (first, second):
                assert len(await each.json("/debug/decisions")) == 3

    asyncio.run(main())


def test_b063_two_releases_on_a_gateway_have_nothing_in_common() -> None:
    """Field problem B063: and so it is with two releases of the chart."""
    names: list[set[tuple[str, str]]] = []
    routes: list[dict[str, Any]] = []
    for release in ("a", "b"):
        values = {"pool": {"matchLabels": {"app": release}}, "provider": {"name": "istio"},
                  "route": {"create": True, "hostnames": [f"{release}.example"]}}  # fmt: skip
        objects = chart.render(values, release=release)
        names.append({(each["kind"], each["metadata"]["name"]) for each in objects})
        routes.append(chart.one(objects, "HTTPRoute")["spec"])
        selected = chart.one(objects, "Service")["spec"]["selector"]
        assert selected["app.kubernetes.io/instance"] == release
    assert names[0].isdisjoint(names[1])
    assert routes[0]["parentRefs"] == routes[1]["parentRefs"]
    backends = [route["rules"][0]["backendRefs"][0]["name"] for route in routes]
    assert backends == ["a", "b"]


def test_b067_a_request_for_another_host_goes_on_at_once_without_a_destination(
    tmp_path: Path,
) -> None:
    """Field problem B067 (kgateway-dev/kgateway#11868): asked about routes to a provider too."""
    chosen = {DESTINATION: "10.0.0.1:1"}

    async def passed(stream: ext_proc.Stream, side: str) -> bytes:
        return b"".join(each.body for each in ext_proc.pieces([await stream.read()], side))

    async def foreign(stream: ext_proc.Stream, host: str) -> None:
        await stream.send(ext_proc.request_head({":authority": host, **chosen}))
        first = await stream.read()  # before there is any body
        assert ext_proc.set_headers(first) == {}
        assert ext_proc.removed(first) == {DESTINATION}
        await stream.send(ext_proc.request_body(b"no JSON, no model", ends=True))
        assert await passed(stream, "request") == b"no JSON, no model"
        await stream.send(ext_proc.response_head())
        assert ext_proc.set_headers(await stream.read()) == {}
        await stream.send(ext_proc.response_body(b"{}", ends=True))
        assert await passed(stream, "response") == b"{}"

    async def ours(stream: ext_proc.Stream, host: str) -> None:
        kind = {":authority": host, "content-type": "application/json"}
        await stream.send(ext_proc.request_head(kind))
        await stream.send(ext_proc.request_body(prompt_body("hello"), ends=True))
        assert ext_proc.destination(await stream.read())

    async def main() -> None:
        async with serving(tmp_path, "--only-hosts=models.example.org,*.pool.example") as picker:
            for host in ("api.provider.example", "example.org:443"):
                async with picker.gateway.stream() as stream:
                    await foreign(stream, host)
            assert await picker.json("/debug/decisions") == []
            for host in ("models.example.org:8080", "a.pool.example"):
                async with picker.gateway.stream() as stream:
                    await ours(stream, host)
            await at_rest(picker)
            assert len(await picker.json("/debug/decisions")) == 2

    asyncio.run(main())
