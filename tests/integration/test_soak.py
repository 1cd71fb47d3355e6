"""Memory after many requests: what a picker holds does not grow with what it has answered.

``EPP_SOAK_REQUESTS=200000`` makes it the long run, of some minutes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from envoy.data.accesslog.v3 import accesslog_pb2
from envoy.service.accesslog.v3 import als_pb2

from epp.feedback.access_log import SERVICE
from tests.support import ext_proc, serving
from tests.support.ext_proc import DUPLEX, NONE
from tests.support.serving import Serving

REQUESTS = int(os.environ.get("EPP_SOAK_REQUESTS", "5000"))
WARM_REQUESTS = max(1_000, REQUESTS // 10)
GROWTH_MIB = 8.0
PROMPTS = [f"{i} " + "a prompt of some length, " * 80 for i in range(100)]
BAD_BODY = b'{"model": "m", "prompt": '


class Log:
    """A gateway's access log."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._turn = asyncio.Lock()  # one write at a time

    async def tell(self, request_id: str, served: str) -> None:
        """Tell that a request has been answered whole."""
        message = als_pb2.StreamAccessLogsMessage()
        entry = message.http_logs.log_entry.add()
        entry.request.request_id = request_id
        entry.response.response_code.value = 200
        entry.common_properties.access_log_type = accesslog_pb2.DownstreamEnd
        host, _, port = served.rpartition(":")
        place = entry.common_properties.upstream_remote_address.socket_address
        place.address, place.port_value = host, int(port)
        async with self._turn:
            await asyncio.wait_for(self._call.write(message), 5.0)


@contextlib.asynccontextmanager
async def logging(picker: Serving) -> AsyncIterator[Log]:
    """Open the access log."""
    call = picker.gateway.channel.stream_unary(
        f"/{SERVICE}/StreamAccessLogs",
        request_serializer=als_pb2.StreamAccessLogsMessage.SerializeToString,
        response_deserializer=als_pb2.StreamAccessLogsResponse.FromString,
    )()
    try:
        yield Log(call)
    finally:
        call.cancel()


async def lean(picker: Serving, log: Log, number: int) -> None:
    """One exchange whose answer goes by unseen and is told of."""
    name = f"r-{number}"
    async with picker.gateway.stream() as stream:
        served = await pick(stream, number, answer_mode=NONE)
        await stream.close()
        await stream.rest()
    await log.tell(name, served)


async def stock(picker: Serving, number: int) -> None:
    """One exchange whose answer passes through."""
    async with picker.gateway.stream() as stream:
        await pick(stream, number, answer_mode=DUPLEX)
        await serving.answer(stream, headers={"content-type": "text/event-stream"})


async def left(picker: Serving, number: int) -> None:
    """One whose client leaves before its answer."""
    async with picker.gateway.stream() as stream:
        await pick(stream, number, answer_mode=DUPLEX)
        await stream.close()
        await stream.rest()


async def refused(picker: Serving, number: int) -> None:
    """One whose body is broken."""
    async with picker.gateway.stream() as stream:
        await stream.send(head(number, DUPLEX), ext_proc.request_body(BAD_BODY, ends=True))
        answer = await stream.read()
        assert answer.WhichOneof("response") == "immediate_response"
        await stream.close()
        await stream.rest()


async def pick(stream: ext_proc.Stream, number: int, *, answer_mode: int) -> str:
    """Send the request; return where it goes."""
    asked = {"model": "m", "prompt": PROMPTS[number % len(PROMPTS)], "stream": True}
    body = msgspec.json.encode(asked)
    await stream.send(head(number, answer_mode), ext_proc.request_body(body, ends=True))
    destination = ext_proc.destination(await stream.read())
    if answer_mode != NONE:  # else the body may have come with the head
        await stream.read()
    return destination


def head(number: int, answer_mode: int) -> Any:
    headers = {"content-type": "application/json", "x-request-id": f"r-{number}"}
    return ext_proc.request_head(headers, modes=(DUPLEX, answer_mode))


async def soak(picker: Serving, first: int, count: int) -> None:
    """Send ``count`` requests of all kinds, numbered from ``first``."""
    async with logging(picker) as log:

        async def one(i: int) -> None:
            number = first + i
            if number % 10 == 8:
                await refused(picker, number)
            elif number % 10 == 9:
                await left(picker, number)
            elif number % 2:
                await stock(picker, number)
            else:
                await lean(picker, log, number)

        await serving.in_parallel(count, one)
        await serving.at_rest(picker)


@pytest.mark.timeout(60 + REQUESTS // 100)
def test_memory_stays_flat_however_many_requests_were_answered(tmp_path: Path) -> None:
    async def run(picker: Serving) -> None:
        await soak(picker, 0, WARM_REQUESTS)
        warm = picker.memory()
        await soak(picker, WARM_REQUESTS, REQUESTS)
        grown = picker.memory() - warm
        state = await picker.state()
        assert state["reaped"] == 0
        assert state["unmatched_log_entries"] == 0
        foreseen = await picker.metric('epp_ttft_expected_seconds_count{priority="0"}')
        assert foreseen is not None, "streams are learned from, too"
        assert foreseen > REQUESTS // 5
        print(f"{REQUESTS} requests: from {warm:.1f} MiB by {grown:.2f} MiB")
        assert grown < GROWTH_MIB

    serving.with_engines(tmp_path, run)
