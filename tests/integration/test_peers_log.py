"""Two pickers, and a gateway whose access log comes to one of them: each request ends by its entry.

In: real processes and sockets, a gateway's ends by hand. Out: Envoy, which `tests.e2e` has.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
from envoy.data.accesslog.v3 import accesslog_pb2
from envoy.service.accesslog.v3 import als_pb2

from epp.clock import SystemClock
from epp.feedback.access_log import SERVICE
from epp.feedback.entry import Entry
from epp.feedback.unseen import Unseen
from epp.local.fleet import free_port
from epp.model import Outcome
from epp.pool import Pool
from tests.integration.test_peers_processes import figure, flags, heard
from tests.support import build
from tests.support import ext_proc as gw
from tests.support.peers import Picker, pickers, until
from tests.support.serving import Serving, at_rest, eventually, in_parallel, serving

REQUESTS = 200
SERVED = ("127.0.0.1", 8000)
ANSWER_SECONDS = 0.45
CUT = "upstream_connection_termination"
LEFT = "downstream_connection_termination"


class Kind(msgspec.Struct, frozen=True):
    """How a request goes, and what is told of it."""

    status: int
    outcome: str
    flags: tuple[str, ...] = ()
    usage: bool = False
    broken: bool = False  #: its answer passes through the picker, and breaks off
    early: bool = False  #: its entry comes before its stream ends
    twice: bool = False  #: and once more


KINDS = (
    Kind(200, "completed", usage=True),
    Kind(200, "completed", usage=True, early=True),
    Kind(503, "failed", twice=True),
    Kind(200, "failed", (CUT,), broken=True),
    Kind(0, "abandoned", (LEFT,)),
    Kind(200, "abandoned", (LEFT,), broken=True, early=True),
    Kind(201, "completed", early=True, twice=True),
)


class Log:
    """A gateway's access log."""

    def __init__(self, picker: Serving) -> None:
        method = f"/{SERVICE}/StreamAccessLogs"
        self._call: Any = picker.gateway.channel.stream_unary(method)()
        self._turn = asyncio.Lock()  # one write at a time

    async def tell(self, number: int, name: str, kind: Kind) -> None:
        entry = accesslog_pb2.HTTPAccessLogEntry()
        common = entry.common_properties
        common.access_log_type = accesslog_pb2.DownstreamEnd
        place = common.upstream_remote_address.socket_address
        place.address, place.port_value = SERVED
        common.duration.nanos = int(ANSWER_SECONDS * 1e9)
        for flag in kind.flags:
            setattr(common.response_flags, flag, True)
        told: dict[str, Any] = {"exchange": name}
        if kind.usage:
            told |= {"prompt_tokens": number, "completion_tokens": 7, "cached_tokens": 0}
            told["first_chunk_ms"] = 200 + number
        common.metadata.filter_metadata["epp"].update(told)
        entry.request.request_id = f"r-{number}"
        entry.response.response_code.value = kind.status
        entry.response.response_body_bytes = 1000 + number
        message = als_pb2.StreamAccessLogsMessage()
        message.http_logs.log_entry.append(entry)
        async with self._turn:
            await asyncio.wait_for(self._call.write(message.SerializeToString()), 10.0)

    def close(self) -> None:
        self._call.cancel()


@contextlib.asynccontextmanager
async def two(folder: Path) -> AsyncIterator[tuple[Serving, Serving]]:
    ports = [free_port() for _ in range(2)]
    for name in ("one", "other"):
        (folder / name).mkdir()
    more = f"--receipts={REQUESTS}"
    async with (
        serving(folder / "one", *flags(ports[0], *ports), more) as one,
        serving(folder / "other", *flags(ports[1], *ports), more) as other,
    ):
        await heard(one)
        await heard(other)
        yield one, other


async def pick(stream: Any, number: int, mode: int) -> str:
    """Ask for an endpoint; return the name that is given to the exchange."""
    head = gw.request_head({"x-request-id": f"r-{number}"}, modes=(gw.DUPLEX, mode))
    await stream.send(head, gw.request_body(b'{"model":"m","prompt":"hello"}', ends=True))
    first = await stream.read()
    if mode != gw.NONE:
        await stream.read()  # else the picker may have closed the stream
    told = first.dynamic_metadata.fields["epp"].struct_value.fields["exchange"].string_value
    return str(told)


async def end(stream: Any) -> None:
    """Close a stream whose answer goes by; the picker may have closed it, too."""
    with contextlib.suppress(asyncio.InvalidStateError):
        await stream.close()
    await stream.rest()


async def whole(picker: Serving, log: Log, number: int) -> None:
    """A request, and what is told of it."""
    kind = KINDS[number % len(KINDS)]
    async with picker.gateway.stream() as stream:
        stream.bound = 20.0
        name = await pick(stream, number, gw.STREAMED if kind.broken else gw.NONE)
        if kind.broken:
            await stream.send(gw.response_head(status=kind.status), gw.response_body(b"a"))
            await stream.read()
        if kind.usage:
            await asyncio.sleep(ANSWER_SECONDS)  # no answer is told of before it is over
        if kind.early:
            await log.tell(number, name, kind)
            await asyncio.sleep(0.05)  # so that it may come first; right either way
        if not kind.broken:
            await end(stream)
    if not kind.early:
        await log.tell(number, name, kind)
    if kind.twice:
        await log.tell(number, name, kind)


async def logs(picker: Serving) -> tuple[int, int]:
    """The logs that are open to it, and those that it hears are open to the other."""
    state = await picker.state()
    (met,) = state["peers"]["pools"]["default"]["following"].values()
    return state["access_logs"], met["access_logs"]


def test_each_request_of_either_ends_by_its_own_entry(tmp_path: Path) -> None:
    async def main() -> None:
        async with two(tmp_path) as (one, other):
            pickers, log = (one, other), Log(one)

            async def open_() -> bool:
                return await logs(one) == (1, 0) and await logs(other) == (0, 1)

            await eventually(open_)
            await in_parallel(REQUESTS, lambda number: whole(pickers[number % 2], log, number))
            for picker in pickers:
                assert (await at_rest(picker))["reaped"] == 0
            ended: dict[str, dict[str, Any]] = {}
            for picker in pickers:
                told = await picker.json(f"/debug/decisions?limit={REQUESTS}")
                assert len(told) == REQUESTS / 2
                ended |= {each["request_id"]: each["ended"] for each in told}
            for number in range(REQUESTS):
                kind, end = KINDS[number % len(KINDS)], ended[f"r-{number}"]
                assert end["outcome"] == kind.outcome, (number, end)
                assert end["status"] == (kind.status or None)
                assert end["served"] == "{}:{}".format(*SERVED)
                assert end["flags"] == ",".join(kind.flags)
                assert kind.broken or end["response_bytes"] == 1000 + number
                if kind.usage:
                    tokens = [end[f"{each}_tokens"] for each in ("prompt", "completion", "cached")]
                    assert tokens == [number, 7, 0]
                    assert abs(end["ttft_seconds"] - (0.2 + number / 1000)) < 0.002
            numbers = range(1, REQUESTS, 2)  # those of the other
            entries = sum(1 + KINDS[number % len(KINDS)].twice for number in numbers)
            assert await figure(one, "_told_entries_total") == entries
            assert await figure(other, "_heard_entries_total") == entries
            assert await figure(other, "_told_entries_total") == 0
            log.close()

    asyncio.run(main())


def test_a_picker_that_is_cut_off_while_its_entries_wait_is_heard_again_and_nothing_leaks(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with two(tmp_path) as (one, other):
            log, kind = Log(one), KINDS[0]

            async def adopted(number: int) -> str:
                async with other.gateway.stream() as stream:
                    name = await pick(stream, number, gw.NONE)
                    await end(stream)
                return name

            first, second = await adopted(0), await adopted(1)
            other.signal(signal.SIGSTOP)
            for _ in range(50):
                await log.tell(0, first, kind)
            other.signal(signal.SIGCONT)

            async def one_is_open() -> bool:
                return (await other.state())["open_exchanges"] == 1

            await eventually(one_is_open)
            other.signal(signal.SIGKILL)
            await heard(one, 0)
            before = (await one.state())["unmatched_log_entries"]
            for _ in range(20):
                await log.tell(1, second, kind)  # of nobody any more

            async def counted() -> bool:
                return (await one.state())["unmatched_log_entries"] == before + 20

            await eventually(counted)
            assert (await logs_page(one))["followers"] == {}
            await at_rest(one)
            log.close()

    asyncio.run(main())


async def logs_page(picker: Serving) -> dict[str, Any]:
    page: dict[str, Any] = (await picker.state())["peers"]["pools"]["default"]
    return page


def test_with_many_pools_an_entry_is_told_once_and_to_its_picker_only() -> None:
    async def main() -> None:
        async with pickers(3, ("p", "q")) as (here, there, third):
            unseens = [unseen_of(each) for each in (here, there, third)]
            unseens[0].log_opened()
            await until(lambda: all(each.logs_connected for each in unseens))
            exchange = await there.lanes["q"].send()
            exchange.listen(diary := build.Diary())
            name = unseens[1].name(exchange)
            unseens[1].adopt(exchange)
            entry = Entry(request_id="", name=name, outcome=Outcome.FAILED, status=503)
            unseens[0].entry(entry)
            await until(lambda: exchange.ended)
            assert [(each.outcome, each.status) for each in diary.endings] == [
                (Outcome.FAILED, 503)
            ]
            told, heard, other = (
                [lane.circle.counts for lane in each.lanes.values()]
                for each in (here, there, third)
            )
            assert sum(each.told_entries for each in told) == 1
            assert sum(each.heard_entries for each in heard) == 1
            assert sum(each.heard_entries for each in other) == 0
            await here.stop()  # and its log with it
            await until(lambda: not any(each.logs_connected for each in unseens[1:]))
            assert all(each.asks_why for each in unseens)

    asyncio.run(main())


def unseen_of(picker: Picker) -> Unseen:
    """What of its exchanges goes by unseen, as the process has it."""
    entries = picker.sharing.entries
    unseen = Unseen(Pool(), SystemClock(), run=entries.run, forward=entries.tell)
    entries.attach(unseen)
    return unseen
