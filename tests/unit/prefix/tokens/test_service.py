"""Token ids from a service, and what becomes of requests for which it does not tell."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import struct
from collections.abc import AsyncIterator, Mapping
from typing import Any

import msgspec
import pytest
from aiohttp import web

from epp.formats.prompt import START
from epp.model import InferenceRequest
from epp.prefix.tokens.backend import NoTokens
from epp.prefix.tokens.producer import TokenProducer
from epp.prefix.tokens.service import Service
from tests.support import build
from tests.support.kv_feeds import endpoint

CHAT = InferenceRequest(
    "r", {}, b'{"model":"x","messages":[]}', format="chat", model="x", prompt=START + b"c"
)

keys: list[str] = []  #: that the last server was shown


@contextlib.asynccontextmanager
async def served(pages: Mapping[str, Any]) -> AsyncIterator[tuple[str, list[tuple[str, bytes]]]]:
    """Serve pages by path; yield the address and what was asked."""
    asked: list[tuple[str, bytes]] = []
    keys.clear()

    async def answer(request: web.Request) -> web.Response:
        asked.append((request.path, await request.read()))
        keys.append(request.headers.get("authorization", ""))
        page = pages.get(request.path, 404)
        if page == "hang":
            await asyncio.sleep(1)
        return web.Response(status=page) if isinstance(page, int) else web.Response(text=page)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", asked
    finally:
        await runner.cleanup()


async def told(url: str, request: InferenceRequest = CHAT, seconds: float = 5.0) -> Any:
    service = Service(url, seconds=seconds, media_seconds=5.0, chooser=random.Random(1))
    try:
        return await service.tokens(request, ())
    finally:
        await service.close()


def packed(*ids: int) -> bytes:
    return struct.pack(f"<{len(ids)}I", *ids)


def test_a_render_path_is_sent_the_requests_own_body() -> None:
    async def run() -> None:
        pages = {"/v1/chat/completions/render": '{"token_ids": [1, 2, 70000], "more": {}}'}
        async with served(pages) as (url, asked):
            tokens = await told(url)
            assert (tokens.ids, tokens.count, tokens.source) == (packed(1, 2, 70000), 3, "render")
            assert asked == [("/v1/chat/completions/render", CHAT.body)]

    asyncio.run(run())


def test_an_engine_without_a_render_path_is_asked_to_tokenize_and_not_again() -> None:
    async def run() -> None:
        async with served({"/tokenize": '{"count": 2, "tokens": [7, 8]}'}) as (url, asked):
            service = Service(url, seconds=5, media_seconds=5, chooser=random.Random(1))
            for _ in range(2):
                tokens = await service.tokens(CHAT, ())
                assert (tokens.ids, tokens.source) == (packed(7, 8), "tokenize")
            await service.close()
            assert [path for path, _ in asked] == [
                "/v1/chat/completions/render", "/tokenize", "/tokenize",
            ]  # fmt: skip

    asyncio.run(run())


def test_a_model_that_is_not_known_says_nothing_about_the_render_path() -> None:
    async def run() -> None:
        pages: dict[str, Any] = {}
        async with served(pages) as (url, _):
            service = Service(url, seconds=5, media_seconds=5, chooser=random.Random(1))
            with pytest.raises(NoTokens, match="refused"):
                await service.tokens(CHAT, ())
            pages["/v1/chat/completions/render"] = '{"token_ids": [1]}'
            assert (await service.tokens(CHAT, ())).source == "render"
            await service.close()

    asyncio.run(run())


def test_of_several_prompts_the_first_is_known_and_all_count() -> None:
    async def run() -> None:
        pages = {"/v1/completions/render": '[{"token_ids": [1]}, {"token_ids": [2, 3]}]'}
        async with served(pages) as (url, _):
            tokens = await told(url, msgspec.structs.replace(CHAT, format="completions"))
            assert (tokens.ids, tokens.count) == (packed(1), 3)

    asyncio.run(run())


def test_media_are_named_where_they_begin() -> None:
    async def run() -> None:
        page = {
            "token_ids": [1] * 9,
            "features": {
                "mm_hashes": {"image": ["b", "a"], "audio": ["c"]},
                "mm_placeholders": {
                    "image": [{"offset": 6, "length": 2}, {"offset": 2}], "audio": [{"offset": 4}],
                },
            },
        }  # fmt: skip
        async with served({"/v1/chat/completions/render": json.dumps(page)}) as (url, _):
            assert (await told(url)).media == ((2, "a"), (4, "c"), (6, "b"))

    asyncio.run(run())


@pytest.mark.parametrize(
    ("page", "reason"),
    [
        ("hang", "timeout"), (500, "refused"), (400, "refused"), (404, "refused"),
        ('{"token_ids": [1], "x": ' + "[" * 100_000, "unreadable"),
        ("no json", "unreadable"), ("{}", "unreadable"), ("[]", "unreadable"),
        ('{"token_ids": [-1]}', "unreadable"), ('{"token_ids": ["a"]}', "unreadable"),
    ],
)  # fmt: skip
def test_a_service_that_does_not_tell_says_why(page: Any, reason: str) -> None:
    async def run() -> None:
        async with served({"/v1/chat/completions/render": page}) as (url, _):
            with pytest.raises(NoTokens) as said:
                await told(url, seconds=0.2)
            assert said.value.reason == reason

    asyncio.run(run())


@pytest.mark.parametrize(("engines", "shown"), [(True, "Bearer KEY"), (False, "")])
def test_the_clients_key_is_shown_to_engines_only(engines: bool, shown: str) -> None:
    async def run() -> None:
        pages = {"/v1/chat/completions/render": '{"token_ids": [1]}'}
        async with served(pages) as (url, _):
            service = Service(
                "" if engines else url, seconds=5, media_seconds=5, chooser=random.Random(1)
            )
            port = int(url.rpartition(":")[2])
            request = msgspec.structs.replace(CHAT, headers={"authorization": "Bearer KEY"})
            await service.tokens(request, [endpoint(port)])
            await service.close()
            assert keys == [shown]

    asyncio.run(run())


def test_nobody_there_is_a_reason_too() -> None:
    with pytest.raises(NoTokens, match="connection"):
        asyncio.run(told("http://127.0.0.1:9"))
    with pytest.raises(NoTokens, match="no_endpoint"):
        asyncio.run(told(""))


def producer(**params: Any) -> TokenProducer:
    return TokenProducer(msgspec.convert(params, TokenProducer.Params), build.tools())


def test_token_ids_of_the_client_are_used_without_asking_anybody() -> None:
    made = producer(vllm={"url": "http://127.0.0.1:9"})
    request = InferenceRequest(
        "r", {}, b"{}", format="completions", prompt=packed(5, 6), prompt_tokens=2
    )
    enriched = made.enrich(request, ())
    assert isinstance(enriched, InferenceRequest)
    assert enriched.tokens is not None
    assert (enriched.tokens.ids, enriched.tokens.source) == (packed(5, 6), "client")


def test_the_service_is_asked_for_its_own_model_and_the_engine_for_the_requests() -> None:
    async def run() -> None:
        pages = {"/v1/chat/completions/render": '{"token_ids": [1]}'}
        async with served(pages) as (url, asked):
            made = producer(modelName="base", vllm={"url": url})
            enriched = made.enrich(CHAT, ())
            assert not isinstance(enriched, InferenceRequest)
            request = await enriched
            await made.close()
            assert json.loads(asked[0][1])["model"] == "base"
            assert (request.body, request.target_model) == (CHAT.body, CHAT.target_model)
            assert made.told == {("render", ""): 1}

    asyncio.run(run())


def test_a_format_that_nobody_can_tokenize_goes_on_with_the_reason() -> None:
    made = producer(vllm={})
    enriched = made.enrich(msgspec.structs.replace(CHAT, format="responses"), ())
    assert isinstance(enriched, InferenceRequest)
    assert (enriched.tokens, enriched.no_tokens) == (None, "format")
    assert made.told == {("", "format"): 1}


def test_no_repr_shows_token_ids() -> None:
    made = producer()
    request = InferenceRequest("r", {}, b"{}", format="completions", prompt=packed(5, 6))
    enriched = made.enrich(request, ())
    assert isinstance(enriched, InferenceRequest)
    assert repr(enriched.tokens) == "Tokens(0, client)"
