"""Connectors beside NIXL, in what the engines are sent; servers that write down stand in for them."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
from aiohttp import web

from tests.support.sidecar import beside, good, recording

PATH = "/v1/completions"


async def ask(port: int, prefill: int, **fields: Any) -> tuple[int, Any]:
    head = {"x-prefiller-host-port": f"127.0.0.1:{prefill}"}
    url = f"http://127.0.0.1:{port}{PATH}"
    body = {"prompt": "x", "max_tokens": 9, **fields}
    async with (
        aiohttp.ClientSession() as http,
        http.post(url, json=body, headers=head) as got,
    ):
        return got.status, await got.json()


async def broken(request: web.Request) -> web.StreamResponse:
    return web.json_response({}, status=500)


def test_sglangs_legs_go_at_once_with_one_room() -> None:
    async def main() -> None:
        met = asyncio.Barrier(2)

        async def together(request: web.Request) -> web.StreamResponse:
            await met.wait()
            return await good(request)

        async with recording(together) as prefill, recording(together) as engine:
            options = {"kv_connector": "sglang", "mooncake_bootstrap_port": 7}
            async with beside(engine.port, **options) as sidecar:
                assert (await ask(sidecar.ports[0], prefill.port))[0] == 200
        (first,), (second,) = prefill.bodies(PATH), engine.bodies(PATH)
        assert first == second
        assert (first["bootstrap_host"], first["bootstrap_port"]) == ("127.0.0.1", 7)
        assert first["max_tokens"] == 9

    asyncio.run(main())


def test_b134_a_failed_prefill_ends_the_leg_that_waits_for_it() -> None:
    """The result of the prefill was never tied to the decode call, which waited for minutes."""

    async def main() -> None:
        async def waiting(request: web.Request) -> web.StreamResponse:
            if request.path == PATH and "bootstrap_room" in await request.json():
                await asyncio.Event().wait()
            return await good(request)

        async with (
            recording(broken) as prefill,
            recording(waiting) as engine,
            beside(engine.port, kv_connector="sglang") as sidecar,
        ):
            assert (await ask(sidecar.ports[0], prefill.port))[0] == 200
            assert sidecar.proxy.in_flight == 0
        first, second = engine.bodies(PATH)
        assert engine.bodies("/abort_request") == [{"rid": first["rid"]}]
        assert second == {"prompt": "x", "max_tokens": 9}

    asyncio.run(main())


def test_mooncakes_engine_is_asked_who_it_is_each_time() -> None:
    async def main() -> None:
        async def tells(request: web.Request) -> web.StreamResponse:
            return web.json_response({"0": {"engine_id": "e-1"}})

        async with recording(tells) as bootstrap, recording() as prefill, recording() as engine:
            options = {"kv_connector": "mooncake", "mooncake_bootstrap_port": bootstrap.port}
            async with beside(engine.port, **options) as sidecar:
                for _ in range(2):
                    assert (await ask(sidecar.ports[0], prefill.port))[0] == 200
        assert [path for path, _, _ in bootstrap.seen] == ["/query", "/query"]
        for sent, got in zip(prefill.bodies(PATH), engine.bodies(PATH), strict=True):
            params = got["kv_transfer_params"]
            assert params["remote_engine_id"] == "e-1"
            assert params["remote_bootstrap_addr"] == f"http://127.0.0.1:{bootstrap.port}"
            assert params["transfer_id"] == sent["kv_transfer_params"]["transfer_id"]
        ids = [each["kv_transfer_params"]["transfer_id"] for each in prefill.bodies(PATH)]
        assert len(set(ids)) == 2

    asyncio.run(main())


def test_a_mooncake_endpoint_that_does_not_say_who_it_is_is_not_asked() -> None:
    async def main() -> None:
        async with recording(broken) as bootstrap, recording() as prefill, recording() as engine:
            options = {"kv_connector": "mooncake", "mooncake_bootstrap_port": bootstrap.port}
            async with beside(engine.port, **options) as sidecar:
                assert (await ask(sidecar.ports[0], prefill.port))[0] == 200
        assert prefill.seen == []
        assert engine.bodies(PATH) == [{"prompt": "x", "max_tokens": 9}]

    asyncio.run(main())


def test_a_busy_endpoint_is_asked_again_if_that_is_wanted() -> None:
    async def main() -> None:
        statuses = iter((503, 502, 200))

        async def busy(request: web.Request) -> web.StreamResponse:
            return web.json_response({}, status=next(statuses))

        async with recording(busy) as prefill, recording() as engine:
            options = {"prefill_max_retries": 2, "prefill_retry_backoff": 0.01}
            async with beside(engine.port, kv_connector="shared-storage", **options) as sidecar:
                assert (await ask(sidecar.ports[0], prefill.port))[0] == 200
        assert [each["max_tokens"] for each in prefill.bodies(PATH)] == [1, 1, 1]
        assert engine.bodies(PATH) == [{"prompt": "x", "max_tokens": 9}]

    asyncio.run(main())


def test_a_request_with_several_choices_is_not_split() -> None:
    async def main() -> None:
        async with recording() as prefill, recording() as engine, beside(engine.port) as sidecar:
            assert (await ask(sidecar.ports[0], prefill.port, n=2))[0] == 200
        assert prefill.seen == []
        assert engine.bodies(PATH) == [{"prompt": "x", "max_tokens": 9, "n": 2}]

    asyncio.run(main())
