"""Bodies that do not come to their end: the room they hold is given back in a bounded time."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from epp.extproc.server import Settings
from epp.model import Outcome
from tests.support import ext_proc as gw
from tests.support.ext_proc import Gateway, Picker
from tests.support.serving import serving

Script = Callable[[Gateway], Awaitable[Any]]


def run(picker: Picker, script: Script, **options: Any) -> Any:
    async def main() -> Any:
        async with picker.serving(**options) as gateway:
            result = await script(gateway)
            await gw.until(lambda: picker.service.active == 0)
            return result

    return asyncio.run(main())


def impatient(seconds: float = 0.2) -> Picker:
    return Picker(settings=Settings(body_timeout=seconds))


def status_of(response: Any) -> int:
    return int(response.immediate_response.status.code)


@pytest.mark.parametrize("modes", [None, (gw.DUPLEX, gw.DUPLEX), (gw.DUPLEX, gw.NONE)])
def test_a_body_that_never_ends_is_answered_408_and_its_room_is_free_again(modes: Any) -> None:
    picker = impatient()
    head = gw.request_head() if modes is None else gw.request_head(modes=modes)

    async def script(gateway: Gateway) -> None:
        async with gateway.stream() as stream:
            await stream.send(head, gw.request_body(b"x" * 1000))
            await gw.until(lambda: picker.service.budget.used == 1000)
            response = await stream.read()
            assert status_of(response) == 408
            error = json.loads(response.immediate_response.body)["error"]
            assert error["type"] == "RequestTimeoutError"
            assert error["message"] == "the request body took longer than 0.2 s"
            await stream.close()
            assert await stream.rest() == []

    run(picker, script)
    assert picker.service.budget.used == 0
    assert len(picker.service.uploads) == 0


def test_a_byte_now_and_then_buys_no_time() -> None:
    picker = impatient()

    async def script(gateway: Gateway) -> None:
        async with gateway.stream() as stream:
            await stream.send(gw.request_head(modes=(gw.DUPLEX, gw.DUPLEX)))

            async def dribble() -> None:
                while True:
                    await stream.send(gw.request_body(b"x"))
                    await asyncio.sleep(0.02)

            dribbling = asyncio.create_task(dribble())
            assert status_of(await stream.read()) == 408
            dribbling.cancel()

    run(picker, script)


def test_a_buffered_body_that_does_not_come_is_answered_too() -> None:
    picker = impatient()

    async def script(gateway: Gateway) -> None:
        async with gateway.stream() as stream:
            await stream.send(gw.request_head(modes=(gw.BUFFERED, gw.NONE)))
            assert (await stream.read()).WhichOneof("response") == "request_headers"
            assert status_of(await stream.read()) == 408

    run(picker, script)


def test_only_the_late_one_ends() -> None:
    picker = impatient(0.4)

    async def script(gateway: Gateway) -> None:
        async with gateway.stream() as late, gateway.stream() as whole:
            await late.send(gw.request_head(modes=(gw.DUPLEX, gw.DUPLEX)))
            await whole.send(gw.request_head(modes=(gw.DUPLEX, gw.DUPLEX)))
            await whole.send(gw.request_body(b"abc", ends=True))
            assert gw.destination(await whole.read())
            await whole.read()
            assert status_of(await late.read()) == 408
            # An answer may take as long as it likes.
            await whole.send(gw.response_head(), gw.response_body(b"{}", ends=True))
            await whole.read()
            await whole.read()
            await whole.close()
            await whole.rest()

    run(picker, script)
    assert [ending.outcome for ending in picker.diary.endings] == [Outcome.COMPLETED]


def test_an_answer_of_the_gateway_s_own_ends_the_wait_for_a_body() -> None:
    picker = impatient()

    async def script(gateway: Gateway) -> None:
        async with gateway.stream() as stream:
            await stream.send(gw.request_head(modes=(gw.DUPLEX, gw.DUPLEX)), gw.request_body(b"x"))
            await stream.send(gw.response_head())
            assert (await stream.read()).WhichOneof("response") == "response_headers"
            await gw.until(lambda: len(picker.service.uploads) == 0)
            await stream.send(gw.response_body(b"{}", ends=True))
            assert [piece.body for piece in gw.pieces([await stream.read()], "response")] == [b"{}"]
            await stream.close()
            await stream.rest()

    run(picker, script)


def test_without_a_bound_nothing_is_watched() -> None:
    picker = impatient(0.0)

    async def script(gateway: Gateway) -> None:
        async with gateway.stream() as stream:
            await stream.send(gw.request_head(modes=(gw.DUPLEX, gw.DUPLEX)))
            await stream.send(gw.request_body(b"abc"))
            await gw.until(lambda: picker.service.budget.used == 3)
            assert len(picker.service.uploads) == 0
            await stream.send(gw.request_body(b"d", ends=True))
            assert gw.destination(await stream.read())

    run(picker, script)


def test_a_client_that_leaves_is_not_taken_for_a_late_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    picker = impatient()

    async def script(gateway: Gateway) -> None:
        for _ in range(20):
            async with gateway.stream() as stream:
                await stream.send(gw.request_head(modes=(gw.DUPLEX, gw.DUPLEX)))
                await stream.send(gw.request_body(b"abc"))
        await gw.until(lambda: picker.service.budget.used == 0)

    run(picker, script)
    assert len(picker.service.uploads) == 0
    # gRPC itself complains of a call that ends before its handler has begun.
    ours = [each for each in caplog.records if each.name.startswith("epp")]
    assert [each for each in ours if each.levelno > logging.INFO] == []


def test_an_operator_says_how_long(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path, "--body-timeout=200ms") as picker:
            async with picker.gateway.stream() as stream:
                await stream.send(gw.request_head(modes=(gw.DUPLEX, gw.DUPLEX)))
                assert status_of(await stream.read()) == 408
            refused = 'epp_refused_requests_total{reason="",status="408"}'
            assert await picker.metric(refused) == 1.0

    asyncio.run(main())
