"""What a client may not do through a sidecar: name hosts, hand over parameters, fill it up."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import logging
from typing import Any

import aiohttp
import pytest
from prometheus_client import generate_latest

from tests.support.serving import eventually
from tests.support.sidecar import (
    DECODE,
    PREFILL,
    Bench,
    beside,
    changed,
    recording,
    text_of,
    with_sidecar,
)  # fmt: skip

DEADLY = {"do_remote_prefill": True}


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"kv_transfer_params": DEADLY}, id="outright"),
        pytest.param({"vllm_xargs": {"kv_transfer_params": DEADLY}}, id="as an extra argument"),
    ],
)
@pytest.mark.parametrize("split", [True, False], ids=["split", "not split"])
def test_what_stops_an_engine_does_not_reach_it(fields: dict[str, Any], split: bool) -> None:
    async def use(bench: Bench) -> None:
        expected = await bench.local()
        status, answer = await bench.post(None if split else [], **fields)
        assert (status, text_of(answer)) == (200, expected)
        assert not bench.decode.died.is_set()
        assert bench.external == (400 if split else 0)

    with_sidecar(use)


def test_what_stops_an_engine_is_not_read_by_it_if_it_is_compressed() -> None:
    async def use(bench: Bench) -> None:
        body = {"model": "sim", "prompt": "a", "max_tokens": 1, "kv_transfer_params": DEADLY}
        sent = gzip.compress(json.dumps(body).encode())
        head = {"content-encoding": "gzip", "content-type": "application/json"}
        async with bench.http.post(bench.url(), data=sent, headers=head) as got:
            assert got.status == 400
        assert not bench.decode.died.is_set()

    with_sidecar(use)


def test_what_stops_an_engine_does_not_reach_it_by_other_paths_either() -> None:
    async def use(bench: Bench) -> None:
        async with recording() as engine, beside(engine.port) as sidecar:
            url = f"http://127.0.0.1:{sidecar.ports[0]}/invocations?x=1"
            body = json.dumps({"prompt": "x", "kv_transfer_params": DEADLY, "bootstrap_room": 1})
            async with bench.http.post(url, data=body) as got:
                assert got.status == 200
        ((path, _, sent),) = engine.seen
        assert (path, sent) == ("/invocations", {"prompt": "x"})

    with_sidecar(use)


def test_b200_only_endpoints_of_the_list_are_asked() -> None:
    """A client could make the sidecar call any host by setting the prefill header itself."""

    async def use(bench: Bench) -> None:
        async with recording() as stranger:
            named = f"127.0.0.1:{stranger.port}"
            allowed = bench.addresses[0]
            options = {"enable_ssrf_protection": True, "allowed_prefillers": allowed}
            async with beside(bench.decode_port, **options) as sidecar:
                url = f"http://127.0.0.1:{sidecar.ports[0]}/v1/completions"
                body = {"model": "sim", "prompt": "x" * 400, "max_tokens": 2}
                for endpoints, status in ((named, 403), (f"{named},{allowed}", 200)):
                    head = {"X-Prefiller-Host-Port": endpoints}
                    async with bench.http.post(url, json=body, headers=head) as got:
                        assert got.status == status
                        if status == 403:
                            said = await got.read()
                            assert said.startswith(b"Forbidden: prefill target not allowed")
                async with bench.http.get(url, headers={"x-prefiller-host-port": named}) as got:
                    assert got.status == 405  # the engine's answer: nobody else was asked
        assert stranger.seen == []
        assert bench.external == 100

    with_sidecar(use)


def test_headers_of_the_picker_and_of_the_connection_stay_here() -> None:
    async def use(bench: Bench) -> None:
        async with recording() as engine, beside(engine.port) as sidecar:
            head = {
                "x-encoder-hosts-ports": "127.0.0.1:1", "x-kv-cache-source-host-port": "127.0.0.1:1",
                "x-data-parallel-host-port": "127.0.0.1:1", "authorization": "Bearer t",
            }  # fmt: skip
            url = f"http://127.0.0.1:{sidecar.ports[0]}/v1/completions"
            async with bench.http.post(url, json={"prompt": "x"}, headers=head) as got:
                assert got.status == 200
        ((_, seen, _),) = engine.seen
        assert not {name for name in seen if name.startswith("x-") and name != "x-request-id"}
        assert (seen["authorization"], len(seen["x-request-id"])) == ("Bearer t", 36)

    with_sidecar(use)


def test_both_legs_have_the_clients_request_id() -> None:
    async def use(bench: Bench) -> None:
        async with (
            recording() as prefill,
            recording() as engine,
            beside(engine.port, kv_connector="shared-storage") as sidecar,
        ):
            url = f"http://127.0.0.1:{sidecar.ports[0]}/v1/completions"
            head = {"x-prefiller-host-port": f"127.0.0.1:{prefill.port}", "x-request-id": "r-7"}
            async with bench.http.post(url, json={"prompt": "x"}, headers=head) as got:
                assert got.status == 200
        assert [seen[0][1]["x-request-id"] for seen in (prefill.seen, engine.seen)] == ["r-7"] * 2

    with_sidecar(use)


def test_bodies_are_bounded_one_by_one_and_together() -> None:
    async def use(bench: Bench) -> None:
        async def chunks(count: int) -> Any:
            for _ in range(count):
                yield b" " * 1000

        for data in (b" " * 5000, chunks(5)):
            async with bench.http.post(bench.url(), data=data) as got:
                assert (got.status, (await got.json())["type"]) == (413, "PayloadTooLargeError")
        bench.prefill.transfers.faults.kinds = ("hang",)
        first = asyncio.create_task(bench.post(prompt="x" * 3000))

        async def held() -> bool:
            return bench.count("epp_sidecar_buffered_bytes") > 3000

        await eventually(held)
        status, answer = await bench.post([], prompt="x" * 3000)
        assert (status, answer["type"]) == (503, "ServiceUnavailable")
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await eventually(bench.at_rest)

    with_sidecar(use, max_body_bytes=4000, max_buffered_bytes=5000)


def test_a_long_body_that_only_a_slow_reader_could_clear_is_refused() -> None:
    async def use(bench: Bench) -> None:
        long = b'{"model":"sim","prompt":"a","max_tokens":1,"x":"%b"' % (b"x" * (1 << 20))
        head = {"content-type": "application/json"}
        for rest in (b',"y":NaN}', b',"bootstrap_room":1}'):
            sent = io.BytesIO(long + rest)
            async with bench.http.post(bench.url(), data=sent, headers=head) as got:
                assert got.status == 400
        assert bench.count("epp_sidecar_refused_total", reason="bad-body") == 2

    with_sidecar(use)


def test_requests_are_bounded_and_slow_bodies_too() -> None:
    async def use(bench: Bench) -> None:
        async def never() -> Any:
            yield b"{"
            await asyncio.Event().wait()

        async def slow() -> int:
            async with bench.http.post(bench.url(), data=never()) as got:
                return got.status

        waiting = asyncio.create_task(slow())

        async def under_way() -> bool:
            return bench.count("epp_sidecar_requests_in_flight") == 1

        await eventually(under_way)
        assert (await bench.post([]))[0] == 503
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await eventually(bench.at_rest)
        async with beside(bench.decode_port, body_timeout=0.1) as bench.sidecar:
            assert await slow() == 408

    with_sidecar(use, max_requests=1)


def test_no_word_of_a_prompt_is_in_what_the_sidecar_says(caplog: pytest.LogCaptureFixture) -> None:
    """B202: prompts were written to the log."""
    marker = "zebra-4711"

    async def use(bench: Bench) -> None:
        for fault in ("error", "malformed", "disconnect"):
            bench.prefill.transfers.faults.kinds = (fault,)
            await bench.post(prompt=marker * 20)
        async with bench.http.post(bench.url(), data=marker) as got:
            assert got.status == 400
        assert marker.encode() not in generate_latest(bench.sidecar.metrics.registry)

    with_sidecar(use)
    assert marker not in caplog.text


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param("POST / HTTP/1.1\r\nHost: a\r\nbad header zebra-4711\r\n\r\n", id="header"),
        pytest.param("zebra-4711 / HTTP/1.1\r\nHost: a\r\n\r\n", id="method"),
        pytest.param(
            "POST /v1/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
            "zebra-4711\r\n",
            id="chunk",
        ),
    ],
)
def test_what_is_no_http_is_not_quoted_in_the_log(
    sent: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither by the sidecar nor by an engine that gets it."""

    async def use(bench: Bench) -> None:
        for port in (bench.sidecar.ports[0], bench.decode_port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent.encode())
            writer.write_eof()
            await asyncio.wait_for(reader.read(), 10.0)
            writer.close()

    with caplog.at_level(logging.DEBUG):
        with_sidecar(use)
    assert "zebra" not in caplog.text


def test_an_endpoint_that_answers_without_end_is_given_up() -> None:
    async def use(bench: Bench) -> None:
        expected = await bench.local()

        async def endless(request: aiohttp.web.Request) -> aiohttp.web.StreamResponse:
            response = aiohttp.web.StreamResponse()
            await response.prepare(request)
            while True:
                await response.write(b" " * 262_144)

        async with recording(endless) as prefill:
            status, answer = await bench.post([f"127.0.0.1:{prefill.port}"])
        assert (status, text_of(answer)) == (200, expected)
        assert bench.count("epp_sidecar_fallbacks_total", reason="bad-answer") == 1

    with_sidecar(use, prefills=[changed(PREFILL)], decode=DECODE)
