"""Heavy bodies in a process of their own: read, bounded, and out of everybody's way."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import uvloop

from epp.aside.reader import COMMAND, AsideReader, Waits
from epp.clock import SystemClock
from epp.errors import BadRequest
from epp.formats import FormatSet
from epp.model import Arrival, InferenceRequest
from tests.support import ext_proc as gw
from tests.support.serving import Serving, complete, serving

FORMATS = FormatSet()
MANY = 200_000
IDS = {"model": "m", "prompt": list(range(MANY))}
Script = Callable[[AsideReader], Awaitable[Any]]


def post(body: bytes, path: str = "/v1/completions") -> Arrival:
    return Arrival("r", {":path": path, "content-type": "application/json"}, body)


async def read(reader: AsideReader, body: bytes) -> InferenceRequest:
    return FORMATS.parse(await reader.read(post(body), FORMATS), 0.0)


def run(script: Script, *command: str, waits: Waits | None = None) -> Any:
    async def main() -> Any:
        reader = AsideReader(SystemClock(), command=command or COMMAND, waits=waits)
        try:
            return await script(reader)
        finally:
            await reader.close()

    return uvloop.run(main())


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_many_token_ids_are_read_and_others_go_on_meanwhile() -> None:
    body = json.dumps(IDS).encode()

    async def script(reader: AsideReader) -> tuple[InferenceRequest, int]:
        await read(reader, body)  # the process is there
        turns, done = 0, asyncio.ensure_future(read(reader, body))
        while not done.done():
            await asyncio.sleep(0.001)
            turns += 1
        return await done, turns

    request, turns = run(script)
    here = FORMATS.parse(post(body), request.arrived_at)
    assert msgspec.structs.replace(request, model_span=None) == here
    assert turns > 3


def test_a_light_body_starts_no_process() -> None:
    async def script(reader: AsideReader) -> None:
        arrival = post(b'{"prompt": "a"}')
        assert await reader.read(arrival, FORMATS) is arrival
        assert reader.pid is None

    run(script)


def test_broken_json_is_refused_and_the_process_stays() -> None:
    async def script(reader: AsideReader) -> None:
        with pytest.raises(BadRequest, match="the body is not valid JSON: error at"):
            await read(reader, b'{"prompt": ' + b" " * 2**20)
        pid = reader.pid
        assert (await read(reader, json.dumps(IDS).encode())).prompt_tokens == MANY
        assert reader.pid == pid

    run(script)


def test_a_body_that_takes_too_long_is_routed_by_load_and_the_next_is_read() -> None:
    dear = b'{"model":"m","query":"a","documents":[' + b'"",' * 8_000_000 + b'"a"]}'

    async def script(reader: AsideReader) -> None:
        body = json.dumps(IDS).encode()
        while (await read(reader, body)).prompt_tokens != MANY:
            pass
        arrival = await reader.read(post(dear, "/v1/rerank"), FORMATS)
        assert arrival.understood is not None
        assert arrival.understood.unread == "too-slow"
        while (await read(reader, body)).prompt_tokens != MANY:
            pass

    run(script, waits=Waits(reading=0.5, starting=20.0, patience=30.0))


def test_a_process_that_ends_is_started_again() -> None:
    body = json.dumps(IDS).encode()

    async def script(reader: AsideReader) -> None:
        await read(reader, body)
        first = reader.pid
        assert first is not None
        os.kill(first, 9)
        assert (await read(reader, body)).unread == "too-slow"
        assert (await read(reader, body)).prompt_tokens == MANY
        assert reader.pid != first

    run(script)


@pytest.mark.parametrize(
    "command",
    [("/does/not/exist",), (sys.executable, "-c", ""), (sys.executable, "-c", "print('x' * 99)")],
    ids=["missing", "ends at once", "talks nonsense"],
)
def test_without_a_process_that_reads_the_request_still_goes_somewhere(
    command: tuple[str, ...],
) -> None:
    async def script(reader: AsideReader) -> None:
        request = await read(reader, json.dumps(IDS).encode())
        assert (request.unread, request.format, request.prompt_tokens) == ("too-slow", "opaque", 0)

    run(script, *command)


@pytest.mark.parametrize(
    "said", [b'"kv_transfer_params":{}', b'"n":NaN,"kv_transfer_params":{}'], ids=["plain", "odd"]
)
def test_what_says_where_a_cache_is_does_not_go_on_unread(said: bytes) -> None:
    body = b'{"prompt":' + json.dumps(IDS["prompt"]).encode() + b"," + said + b"}"

    async def script(reader: AsideReader) -> None:
        with pytest.raises(BadRequest, match="where a KV cache is"):
            await read(reader, body)

    run(script, "/does/not/exist")


def test_a_process_that_does_not_answer_is_ended_in_time() -> None:
    async def script(reader: AsideReader) -> None:
        asking = asyncio.ensure_future(read(reader, json.dumps(IDS).encode()))
        while reader.pid is None:
            await asyncio.sleep(0.01)
        pid = reader.pid
        assert (await asking).unread == "too-slow"
        while alive(pid):
            await asyncio.sleep(0.01)

    run(
        script,
        sys.executable,
        "-c",
        "import time; time.sleep(60)",
        waits=Waits(reading=0.1, starting=0.1),
    )


def test_who_leaves_does_not_disturb_the_next() -> None:
    body, other = json.dumps(IDS).encode(), json.dumps({"prompt": "a" * 2**20}).encode()

    async def script(reader: AsideReader) -> None:
        leaving = [asyncio.ensure_future(read(reader, body)) for _ in range(3)]
        await asyncio.sleep(0.01)
        for each in leaving:
            each.cancel()
        assert (await read(reader, other)).prompt_tokens == 262_145

    run(script)


def test_bodies_whose_clients_left_are_not_kept_until_their_turn() -> None:
    body = json.dumps(IDS).encode()

    async def script(reader: AsideReader) -> None:
        before = sys.getrefcount(body)
        reading = [asyncio.ensure_future(read(reader, body)) for _ in range(50)]
        while reader.pid is None:
            await asyncio.sleep(0.01)
        assert sys.getrefcount(body) >= before + 50
        for each in reading:
            each.cancel()
        await asyncio.wait(reading)
        reading.clear()
        assert sys.getrefcount(body) <= before + 5  # of the one that is being sent

    run(script, sys.executable, "-c", "import time; time.sleep(60)")


def test_nothing_is_left_when_it_closes() -> None:
    async def script(reader: AsideReader) -> int | None:
        waiting = asyncio.ensure_future(read(reader, json.dumps(IDS).encode()))
        while reader.pid is None:
            await asyncio.sleep(0.01)
        pid = reader.pid
        await reader.close()
        assert (await waiting).unread == "too-slow"
        return pid

    pid = run(script)
    assert pid is not None
    assert not alive(pid)


def test_it_is_stopped_when_nothing_came_for_a_while() -> None:
    async def script(reader: AsideReader) -> None:
        await read(reader, json.dumps(IDS).encode())
        pid = reader.pid
        assert pid is not None
        while alive(pid):
            await asyncio.sleep(0.01)
        assert (await read(reader, json.dumps(IDS).encode())).prompt_tokens == MANY

    run(script, waits=Waits(idle=0.05))


def test_a_picker_answers_others_while_it_reads_bodies_that_were_made_to_be_dear(
    tmp_path: Path,
) -> None:
    dear = b'{"model":"m","prompt":[' + b"[1]," * 100_000 + b"[1]]}"  # 0.1 s to read
    pieces = [dear[at : at + 60_000] for at in range(0, len(dear), 60_000)]

    async def attack(picker: Serving) -> None:
        async with picker.gateway.stream() as stream:
            stream.bound = 30.0
            await stream.send(gw.request_head({"content-type": "application/json"}))
            for piece in pieces:
                await stream.send(gw.request_body(piece))
            await stream.send(gw.request_body(ends=True))
            await stream.read()

    async def main() -> float:
        async with serving(tmp_path) as picker:
            await attack(picker)  # the process is there
            attacks, waits = [asyncio.create_task(attack(picker)) for _ in range(4)], []
            loop = asyncio.get_running_loop()
            while not all(each.done() for each in attacks):
                began = loop.time()
                await complete(picker.gateway)
                waits.append(loop.time() - began)
            return sorted(waits)[len(waits) // 2]

    assert uvloop.run(main()) < 0.05
