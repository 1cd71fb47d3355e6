"""Requests split between two engines: the same answer, token by token as it is made."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest

from epp.sim import tokenizer
from tests.support.engine import expected
from tests.support.serving import eventually
from tests.support.sidecar import DECODE, PREFILL, PROMPT, Bench, changed, text_of, with_sidecar


def test_a_split_request_is_answered_as_an_engine_alone_answers_it() -> None:
    async def use(bench: Bench) -> None:
        expected = await bench.local()
        status, answer = await bench.post()
        assert (status, text_of(answer)) == (200, expected)
        assert bench.external == 400
        assert bench.prefill.engine.totals.computed_tokens == 400
        assert bench.count("epp_sidecar_requests_total", way="split") == 1
        await eventually(bench.at_rest)

    with_sidecar(use)


def test_without_the_header_the_engine_computes_alone() -> None:
    async def use(bench: Bench) -> None:
        expected = await bench.local()
        status, answer = await bench.post([])
        assert (status, text_of(answer)) == (200, expected)
        assert (bench.external, bench.prefill.engine.totals.prompt_tokens) == (0, 0)
        assert bench.count("epp_sidecar_requests_total", way="local") == 1

    with_sidecar(use)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        pytest.param(
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": PROMPT}], "max_completion_tokens": 4},
            id="chat",
        ),
        pytest.param(
            "/v1/messages",
            {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 4},
            id="messages",
        ),
        pytest.param("/v1/responses", {"input": PROMPT, "max_output_tokens": 4}, id="responses"),
        pytest.param(
            "/inference/v1/generate",
            {"token_ids": list(range(400)), "sampling_params": {"max_tokens": 4}},
            id="generate",
        ),
    ],
)
def test_every_api_that_has_a_prompt_is_split(path: str, body: dict[str, Any]) -> None:
    async def use(bench: Bench) -> None:
        sent = {"model": "sim", **body}
        async with bench.http.post(bench.url(path), json=sent, headers=bench.head()) as got:
            assert got.status == 200, await got.read()
        assert bench.external >= 400
        assert bench.prefill.engine.totals.output_tokens == 1

    with_sidecar(use)


def test_b146_the_first_token_comes_before_the_last_is_made() -> None:
    """The path of split requests collected the whole stream before sending it on."""

    async def use(bench: Bench) -> None:
        body = {"model": "sim", "prompt": PROMPT, "max_tokens": 1500, "stream": True}
        async with bench.http.post(bench.url(), json=body, headers=bench.head()) as got:
            first = await got.content.readuntil(b"\n\n")
            assert first.startswith(b"data: {")
            made = bench.decode.engine.totals.output_tokens
            assert made < 1500
            rest = await got.read()
        assert bench.external == 400
        events = (first + rest).split(b"\n\n")
        assert events[-2] == b"data: [DONE]"
        pieces = [json.loads(event[6:])["choices"][0]["text"] for event in events[:-2]]
        assert "".join(pieces) == expected(PROMPT, 1500)

    with_sidecar(use, decode=changed(DECODE, speed=10.0))


def test_streams_are_the_engines_byte_for_byte() -> None:
    async def use(bench: Bench) -> None:
        body = {"model": "sim", "prompt": PROMPT, "max_tokens": 5, "stream": True}
        body["stream_options"] = {"include_usage": True}
        head = {"x-request-id": "r-1"}
        urls = (bench.url(), f"http://127.0.0.1:{bench.decode_port}/v1/completions")
        got = []
        for url in urls:
            async with bench.http.post(url, json=body, headers=head) as answer:
                got.append((answer.status, answer.content_type, await answer.read()))
            bench.decode.engine.cache.clear()
        # Only the second in which it was created may differ.
        texts = [_without_time(raw) for _, _, raw in got]
        assert texts[0] == texts[1]
        assert got[0][:2] == got[1][:2]

    with_sidecar(use)


def _without_time(raw: bytes) -> list[Any]:
    events = [json.loads(e[6:]) for e in raw.split(b"\n\n") if e.startswith(b"data: {")]
    return [{**event, "created": 0} for event in events]


def test_other_requests_go_to_the_engine_as_they_are() -> None:
    async def use(bench: Bench) -> None:
        async with bench.http.get(bench.url("/v1/models")) as got:
            assert json.loads(await got.read())["data"][0]["id"] == "sim"
        async with bench.http.get(bench.url("/nowhere")) as got:
            assert (got.status, await got.read()) == (404, b'{"detail":"Not Found"}')
        async with bench.http.get(bench.url("/metrics")) as got:
            assert b"vllm:num_requests_running" in await got.read()
        form = aiohttp.FormData({"model": "sim"})
        form.add_field("file", b"x" * 100_000, filename="a.wav")
        async with bench.http.post(bench.url("/v1/audio/transcriptions"), data=form) as got:
            assert got.status == 404
        assert bench.count("epp_sidecar_requests_total", way="passed") == 4

    with_sidecar(use)


def test_a_client_that_leaves_aborts_both_legs() -> None:
    async def use(bench: Bench) -> None:
        async def prefilling() -> bool:
            return bench.count("epp_sidecar_prefills_in_flight") == 1

        async def decoding() -> bool:
            return bench.decode.engine.totals.output_tokens > 0

        for begun in (prefilling, decoding):
            asking = asyncio.create_task(bench.post(max_tokens=20_000, ignore_eos=True))
            await eventually(begun)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            await eventually(bench.at_rest)
            bench.prefill.transfers.faults.kinds = ()
        assert bench.decode.engine.totals.output_tokens < 20_000
        assert bench.external == 400

    with_sidecar(use, prefills=[changed(PREFILL, kv_faults=("hang",))])


def test_the_engine_of_the_named_rank_is_asked() -> None:
    async def use(bench: Bench) -> None:
        port = bench.sidecar.ports[0]
        head = {"x-data-parallel-host-port": f"127.0.0.1:{port}"}
        async with bench.http.get(bench.url("/health"), headers=head) as got:
            assert got.status == 200
        async with bench.http.get(bench.url("/v1/models"), headers=head) as got:
            assert got.headers["x-engine-name"] == "d"

    with_sidecar(use)


def test_prompts_under_way_at_the_same_time_are_never_mixed() -> None:
    prompts = [tokenizer.text(400, seed=seed) for seed in range(24)]

    async def use(bench: Bench) -> None:
        answers = await asyncio.gather(*(bench.post(prompt=prompt) for prompt in prompts))
        assert bench.count("epp_sidecar_requests_total", way="split") == 24
        for prompt, (status, answer) in zip(prompts, answers, strict=True):
            assert (status, text_of(answer)) == (200, expected(prompt, 8))

    with_sidecar(use)
