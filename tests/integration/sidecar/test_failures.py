"""Whatever goes wrong with the prefill leg, the client gets the right answer from the engine."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from epp.local.fleet import free_port
from epp.sim.transfer.faults import FAULTS
from tests.support import engine
from tests.support.serving import eventually
from tests.support.sidecar import (
    DECODE,
    PREFILL,
    Bench,
    beside,
    changed,
    recording,
    text_of,
    value,
    with_sidecar,
)
from tests.support.sidecar import PROMPT as PROMPT_TEXT

TEXT = "x" * 1600
ASKED = [{"role": "user", "content": TEXT}]
REASONS = {
    "error": "status-5xx",
    "hang": "time-out",
    "disconnect": "disconnect",
    "malformed": "bad-answer",
    "missing": "bad-answer",
    "port-dead": "decode-failed",
}


@pytest.mark.parametrize(("fault", "reason"), REASONS.items(), ids=REASONS)
def test_a_prefill_that_fails_is_made_good_by_the_engine(fault: str, reason: str) -> None:
    async def use(bench: Bench) -> None:
        expected = await bench.local()
        status, answer = await bench.post()
        assert (status, text_of(answer)) == (200, expected)
        assert bench.external == 0
        assert bench.count("epp_sidecar_fallbacks_total", reason=reason) == 1
        assert bench.count("epp_sidecar_requests_total", way="fallback") == 1

    # The lease is a tenth of a second here: what nobody reads is given back.
    prefill = changed(PREFILL, kv_faults=(fault,), kv_lease_duration=5.0)
    impatient = changed(DECODE, kv_connect_timeout=5.0)
    timeout = 0.3 if fault == "hang" else 30.0
    with_sidecar(use, prefills=[prefill], decode=impatient, prefill_timeout=timeout)


@pytest.mark.parametrize("fault", ["error", "port-dead"])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        pytest.param("/v1/completions", {"prompt": TEXT, "max_tokens": 4}, id="completions"),
        pytest.param("/v1/chat/completions", {"messages": ASKED, "max_tokens": 4}, id="chat"),
        pytest.param("/v1/messages", {"messages": ASKED, "max_tokens": 4}, id="messages"),
        pytest.param("/v1/responses", {"input": TEXT, "max_output_tokens": 4}, id="responses"),
    ],
)
def test_a_stream_is_made_good_too(path: str, body: dict[str, Any], fault: str) -> None:
    async def use(bench: Bench) -> None:
        sent, head = {"model": "sim", "stream": True, **body}, {"x-request-id": "r-1"}
        raw = []
        for named in (bench.head(), {}):
            asked = bench.http.post(bench.url(path), json=sent, headers={**head, **named})
            async with asked as got:
                assert got.status == 200
                raw.append(re.sub(rb'"created(_at)?":\d+', b"", await got.read()))
            bench.decode.engine.cache.clear()
        assert raw[0] == raw[1]
        assert b"error" not in raw[0]
        assert bench.count("epp_sidecar_requests_total", way="fallback") == 1

    impatient = changed(DECODE, kv_connect_timeout=5.0)
    with_sidecar(use, prefills=[changed(PREFILL, kv_faults=(fault,))], decode=impatient)


def test_a_dead_prefill_endpoint_leads_to_the_next_and_then_to_the_engine() -> None:
    async def use(bench: Bench) -> None:
        dead = f"127.0.0.1:{free_port()}"
        status, _ = await bench.post([dead, *bench.addresses])
        assert (status, bench.external) == (200, 400)
        bench.decode.engine.cache.clear()
        status, _ = await bench.post([dead, dead])
        assert (status, bench.external) == (200, 400)
        assert bench.count("epp_sidecar_fallbacks_total", reason="connect") == 1

    with_sidecar(use)


def test_b139_a_slow_prefill_is_retried_once_and_never_a_third_time() -> None:
    """Timed-out prefills that were retried elsewhere used up KV on one pod after another."""

    async def use(bench: Bench) -> None:
        status, _ = await bench.post()
        assert status == 200
        asked = [each.engine.totals.prompt_tokens for each in bench.prefills]
        assert asked == [0, 0, 0]
        assert bench.count("epp_sidecar_prefills_total", result="status-5xx") == 2

    with_sidecar(use, prefills=[changed(PREFILL, kv_faults=("error",))] * 3)


def test_b144_a_retry_names_the_engine_that_it_asks() -> None:
    """A retry used the first prefill pod's data with another pod."""

    async def use(bench: Bench) -> None:
        expected = await bench.local()
        status, answer = await bench.post()
        assert (status, text_of(answer), bench.external) == (200, expected, 400)
        assert bench.prefills[1].engine.totals.prompt_tokens == 400

    with_sidecar(use, prefills=[changed(PREFILL, kv_faults=("missing",)), PREFILL])


def test_b134_a_failed_prefill_never_leaves_the_decode_side_waiting() -> None:
    """A failed prefill left the decode side waiting for minutes."""

    async def use(bench: Bench) -> None:
        status, answer = await bench.post()
        assert status == 502
        assert answer["message"] == "The prefill failed: status-5xx."
        assert (bench.decode.engine.waiting, bench.decode.engine.running) == (0, 0)

    failing = changed(PREFILL, kv_faults=("error",))
    with_sidecar(use, prefills=[failing], on_prefill_failure="error")


def test_b136_a_decode_engine_that_is_not_there_is_a_503_with_a_hint() -> None:
    """502 while the decode server was still loading."""

    async def use(bench: Bench) -> None:
        await bench.decode._die()
        async with bench.http.post(bench.url(), json={"prompt": "x"}) as got:
            assert (got.status, got.headers["retry-after"]) == (503, "1")
            assert (await got.json())["type"] == "ServiceUnavailable"
        async with bench.http.get(bench.url("/health")) as got:
            assert got.status == 503
        status, _ = await bench.post()
        assert status == 503
        assert bench.count("epp_sidecar_stranded_leases_total") == 1

    with_sidecar(use)


def test_b138_a_stream_whose_first_token_comes_after_the_lease_is_computed_again() -> None:
    """Answers were made from blocks that the prefill side had freed, with HTTP 200."""

    async def use(bench: Bench) -> None:
        expected = await bench.local(tokens=4)
        blocker = asyncio.create_task(bench.post([], prompt="y" * 40, max_tokens=8000))

        async def busy() -> bool:
            return bench.decode.engine.running > 0

        await eventually(busy)
        body = {"model": "sim", "prompt": PROMPT_TEXT, "max_tokens": 4, "stream": True}
        async with bench.http.post(bench.url(), json=body, headers=bench.head()) as got:
            raw = await got.read()
        await blocker
        assert got.status == 200
        pieces = [part.split(b'"')[0].decode() for part in raw.split(b'"text":"')[1:]]
        assert "".join(pieces) == expected
        assert bench.count("epp_sidecar_fallbacks_total", reason="lease") == 1

    # One request at a time; the one before takes more than a second.
    with_sidecar(
        use,
        prefills=[changed(PREFILL, kv_lease_duration=10.0)],
        decode=changed(DECODE, max_num_seqs=1),
        kv_lease=0.2,
    )


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_b138_a_decode_engine_that_hangs_past_the_lease_leaves_no_wrong_answer(
    stream: bool,
) -> None:
    """Neither the one that it read too late, nor those that find what it read in its cache."""

    other = PROMPT_TEXT[::-1]

    async def use(bench: Bench) -> None:
        expected = await bench.local()
        await bench.decode_call("sleep")
        split = asyncio.create_task(bench.text(stream=stream))

        async def asked() -> bool:
            return bench.decode.engine.waiting > 0

        await eventually(asked)
        behind = asyncio.create_task(bench.text(prompt=other, decoded=True))

        async def over() -> bool:
            return bool(
                bench.count("epp_sidecar_cache_doubts_total")
                and bench.prefill.transfers.metrics.expired
            )

        await eventually(over)
        await bench.decode_call("wake_up")
        assert (await split, await behind) == (expected, engine.expected(other, 8))
        assert bench.external  # by the answer that was dropped
        assert bench.count("epp_sidecar_dropped_answers_total") == 2
        assert await bench.text(decoded=True) == expected
        again = PROMPT_TEXT[100:]
        read = bench.external
        assert await bench.text(prompt=again) == engine.expected(again, 8)
        assert bench.external > read
        assert bench.count("epp_sidecar_fallbacks_total", reason="lease") == 1
        assert bench.count("epp_sidecar_cache_doubts_total") == 1

    # Half a second in life, less than what is believed.
    with_sidecar(use, prefills=[changed(PREFILL, kv_lease_duration=25.0)], kv_lease=1.0)


@pytest.mark.parametrize(
    "opening",
    [
        b"event: response.created\ndata: {}\n\nevent: response.in_progress\ndata: {}\n\n",
        b"event: message_start\ndata: {}\n\n",
    ],
    ids=["responses", "messages"],
)
def test_a_stream_that_was_opened_before_a_doubt_shows_no_token_of_after_it(opening: bytes) -> None:
    """Such streams begin before the engine has computed anything: that they began proves nothing."""
    told = {
        "do_remote_prefill": True, "remote_engine_id": "e", "remote_host": "127.0.0.1",
        "remote_port": 1, "remote_block_ids": [[1]], "remote_request_id": "r",
    }  # fmt: skip

    async def main() -> None:
        reading, wakes, salts = asyncio.Event(), asyncio.Event(), []

        async def prefill(request: web.Request) -> web.StreamResponse:
            return web.json_response({"kv_transfer_params": told})

        async def decode(request: web.Request) -> web.StreamResponse:
            body = await request.json()
            if not body.get("stream"):
                reading.set()
                await wakes.wait()
                return web.json_response({"choices": [{"text": "whole"}]})
            salts.append(body.get("cache_salt"))
            response = web.StreamResponse(headers={"content-type": "text/event-stream"})
            await response.prepare(request)
            await response.write(opening)
            await wakes.wait()
            text = b"wrong" if salts[-1] is None else b"right"
            await response.write(b"event: delta\ndata: " + text + b"\n\n")
            return response

        async with (
            recording(prefill) as other,
            recording(decode) as hangs,
            beside(hangs.port, kv_lease=1.0) as sidecar,
            aiohttp.ClientSession() as http,
        ):
            base, body = f"http://127.0.0.1:{sidecar.ports[0]}", {"model": "m", "prompt": "a"}
            head = {"x-prefiller-host-port": f"127.0.0.1:{other.port}"}
            split = asyncio.create_task(_read(http, f"{base}/v1/completions", body, head))
            await reading.wait()
            stream = {"model": "m", "input": "a", "stream": True}
            local = asyncio.create_task(_read(http, f"{base}/v1/responses", stream, {}))

            async def doubted() -> bool:
                name = "epp_sidecar_cache_doubts_total"
                return bool(salts) and value(sidecar.metrics.registry, name, {}) > 0

            await eventually(doubted)
            wakes.set()
            assert await local == opening + b"event: delta\ndata: right\n\n"
            await split

    asyncio.run(main())


async def _read(
    http: aiohttp.ClientSession, url: str, body: dict[str, Any], head: dict[str, str]
) -> bytes:
    async with http.post(url, json=body, headers=head) as got:
        return await got.read()


def test_an_answer_in_one_piece_is_proven_by_what_is_asked_after_it() -> None:
    async def use(bench: Bench) -> None:
        expected = await bench.local()
        await bench.decode_call("sleep")
        split = asyncio.create_task(bench.text())

        async def probed() -> bool:
            return bench.decode.engine.waiting == 2

        await eventually(probed)
        await bench.decode_call("wake_up")
        assert await split == expected
        assert bench.external
        assert bench.count("epp_sidecar_dropped_answers_total") == 0

    # A quarter of nine tenths of it are waited for; the engine has the rest to go on in.
    with_sidecar(use, kv_lease=8.0)


def test_an_engine_that_is_started_again_is_not_doubted() -> None:
    async def use(bench: Bench) -> None:
        await bench.decode_call("sleep")
        split = asyncio.create_task(bench.post())

        async def doubted() -> bool:
            return bool(bench.count("epp_sidecar_cache_doubts_total"))

        await eventually(doubted)
        trust = bench.sidecar.proxy._engines[0].trust
        assert trust.sent().salt
        await bench.decode._die()
        await split
        assert (await bench.post([]))[0] == 503
        assert not trust.sent().salt

    with_sidecar(use, kv_lease=0.5)


def test_a_cache_whose_lease_is_over_already_is_not_asked_for() -> None:
    async def use(bench: Bench) -> None:
        expected = await bench.local()
        status, answer = await bench.post()
        assert (status, text_of(answer), bench.external) == (200, expected, 0)
        assert bench.count("epp_sidecar_fallbacks_total", reason="lease") == 1
        assert bench.count("epp_sidecar_stranded_leases_total") == 1

    with_sidecar(use, kv_lease=0.0)


def test_every_fault_of_an_engine_is_tested_here() -> None:
    assert set(REASONS) | {"expired"} == set(FAULTS)


@pytest.mark.parametrize("host", ["[:]", "..", "a" * 64 + ".b"])
def test_a_name_that_no_host_can_have_leads_to_the_engine(host: str) -> None:
    async def use(bench: Bench) -> None:
        status, answer = await bench.post([f"{host}:80"])
        assert (status, text_of(answer)) == (200, await bench.local())
        assert bench.count("epp_sidecar_fallbacks_total", reason="connect") == 1

    with_sidecar(use)


@pytest.mark.parametrize("status", [204, 302, 307])
def test_an_endpoint_that_answers_what_no_engine_does_leads_to_the_next(status: int) -> None:
    async def use(bench: Bench) -> None:
        async def odd(request: web.Request) -> web.StreamResponse:
            return web.Response(status=status, headers={"location": "http://127.0.0.1:1/"})

        async with recording(odd) as prefill:
            assert (await bench.post([f"127.0.0.1:{prefill.port}", *bench.addresses]))[0] == 200
            assert len(prefill.seen) == 1
        assert bench.count("epp_sidecar_requests_total", way="split") == 1

    with_sidecar(use)


def test_a_lease_runs_from_the_first_byte_of_a_prefills_answer_not_from_its_last() -> None:
    told = {
        "do_remote_prefill": True, "remote_engine_id": "e", "remote_request_id": "r",
        "remote_host": "127.0.0.1", "remote_port": 1, "remote_block_ids": [[1]],
    }  # fmt: skip

    async def use(bench: Bench) -> None:
        async def slow(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse()
            await response.prepare(request)
            await asyncio.sleep(0.2)
            await response.write(json.dumps({"kv_transfer_params": told}).encode())
            return response

        async with recording(slow) as prefill:
            assert (await bench.post([f"127.0.0.1:{prefill.port}"]))[0] == 200
        assert bench.count("epp_sidecar_fallbacks_total", reason="lease") == 1
        assert bench.decode.transfers.metrics.failed_transfers == 0  # it was not asked for

    with_sidecar(use, kv_lease=0.2)
