"""The access log beside ext_proc streams of one picker, in any order, over real sockets.

Whose an entry is has unit tests; here streams end after, or before, their entries come.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from envoy.data.accesslog.v3 import accesslog_pb2
from envoy.service.accesslog.v3 import als_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb

from epp.clock import ManualClock
from epp.feedback.access_log import SERVICE, AccessLogs
from epp.feedback.unseen import Unseen
from epp.model import Outcome
from epp.pool import Pool
from tests.support import ext_proc as gw
from tests.support.ext_proc import Gateway, Picker, Stream

LEAN = [gw.request_head(modes=(gw.DUPLEX, gw.NONE)), gw.request_body(b"abc", ends=True)]
STOCK = [gw.request_head(), gw.request_body(b"abc", ends=True)]
CUT = "upstream_connection_termination"


def run(script: Callable[[Gateway], Awaitable[None]]) -> Picker:
    """Have ``script`` be the gateway of a picker that hears access logs."""
    unseen = Unseen(Pool(), ManualClock())
    picker = Picker(unseen=unseen)

    async def main() -> None:
        async with picker.serving(methods=[AccessLogs(unseen).methods]) as gateway:
            await script(gateway)
            await gw.until(lambda: picker.service.active == 0)
        assert (len(unseen), picker.in_flight) == (0, 0)

    asyncio.run(main())
    return picker


async def ask(stream: Stream, messages: list[pb.ProcessingRequest]) -> str:
    """Send a request of id r-1, and return the name that its exchange is given."""
    await stream.send(*messages)
    head, _body = await stream.read(), await stream.read()
    told = head.dynamic_metadata.fields["epp"].struct_value.fields["exchange"].string_value
    assert told
    return str(told)


async def tell(gateway: Gateway, name: str, status: int, *flags: str) -> None:
    """Send an entry; return when the picker has it."""
    entry = accesslog_pb2.HTTPAccessLogEntry()
    entry.request.request_id = "r-1"
    entry.response.response_code.value = status
    entry.common_properties.metadata.filter_metadata["epp"].update({"exchange": name})
    for flag in flags:
        setattr(entry.common_properties.response_flags, flag, True)
    message = als_pb2.StreamAccessLogsMessage()
    message.http_logs.log_entry.append(entry)
    log: Any = gateway.channel.stream_unary(f"/{SERVICE}/StreamAccessLogs")()
    await log.write(message.SerializeToString())
    await log.done_writing()
    await log


def told(picker: Picker) -> list[tuple[Outcome, int | None]]:
    return [(ending.outcome, ending.status) for ending in picker.diary.endings]


def test_entries_that_come_before_their_streams_end_are_each_its_own() -> None:
    async def script(gateway: Gateway) -> None:
        async with gateway.stream() as first, gateway.stream() as second:
            names = [await ask(first, LEAN), await ask(second, LEAN)]
            await tell(gateway, names[1], 502)
            await tell(gateway, names[0], 201)
            for stream in (first, second):
                await stream.close()
                assert await stream.rest() == []

    assert told(run(script)) == [(Outcome.COMPLETED, 201), (Outcome.FAILED, 502)]


def test_an_answer_that_broke_off_is_told_of_before_its_stream_breaks() -> None:
    async def script(gateway: Gateway) -> None:
        async with gateway.stream() as stream:
            name = await ask(stream, STOCK)
            await stream.send(gw.response_head(), gw.response_body(b"a"))
            await stream.read()
            await stream.read()
            await tell(gateway, name, 200, CUT)
            await tell(gateway, name, 200, CUT)

    picker = run(script)
    assert told(picker) == [(Outcome.FAILED, 200)]
    assert picker.diary.endings[0].flags == CUT


def test_an_answer_that_passed_through_us_whole_is_as_we_saw_it() -> None:
    async def script(gateway: Gateway) -> None:
        async with gateway.stream() as stream:
            name = await ask(stream, STOCK)
            await tell(gateway, name, 200, CUT)
            await stream.send(gw.response_head(), gw.response_body(b"a", ends=True))
            await stream.read()
            await stream.read()
            await tell(gateway, name, 200, CUT)

    assert told(run(script)) == [(Outcome.COMPLETED, 200)]


def test_an_entry_of_a_request_that_ended_does_not_end_the_next_of_its_id() -> None:
    async def script(gateway: Gateway) -> None:
        async with gateway.stream() as stream:
            failed = await ask(stream, STOCK)
            await stream.send(gw.response_head(status=503, ends=True))
            await stream.read()
        async with gateway.stream() as stream:
            left = await ask(stream, STOCK)
            await tell(gateway, failed, 503, CUT)
        await tell(gateway, left, 0, "downstream_connection_termination")

    assert told(run(script)) == [(Outcome.FAILED, 503), (Outcome.ABANDONED, None)]
