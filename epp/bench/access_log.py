"""The access-log service alone: a fixed rate of entries, each of which ends an exchange.

The exchanges are opened beforehand, as the router would have; the entries come over gRPC from a
process of its own, in batches as often as Envoy sends them, with all that a lean gateway tells.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time

import grpc
import msgspec
import uvloop
from envoy.data.accesslog.v3 import accesslog_pb2
from envoy.service.accesslog.v3 import als_pb2

from epp.clock import SystemClock
from epp.exchange import Exchange
from epp.feedback.access_log import METADATA, SERVICE, AccessLogs
from epp.feedback.unseen import Unseen
from epp.headers import EXCHANGE
from epp.ledger import Ledger
from epp.local.fleet import free_port
from epp.model import Endpoint, EndpointId, InferenceRequest, Pick
from epp.plugin import Observer
from epp.pool import Pool
from epp.process import garbage
from epp.rpc.server import RpcServer

FLUSH_SECONDS = 0.05  #: between two batches, as `GatewayOptions.log_flush_interval`
START_SECONDS = 20.0  #: for the sender to start
END_SECONDS = 10.0  #: for the last entries to come
MOST_BYTES = 2**22  #: of a batch
HOST, PORT = "127.0.0.1", 8000
ENDPOINT = Endpoint(EndpointId(f"{HOST}:{PORT}"), HOST, PORT, "engine")


class Cost(msgspec.Struct, frozen=True):
    """What the entries cost this process: receive, decode, match, end."""

    core_percent: float  #: CPU time by time
    entry_ms: float  #: CPU time of one entry
    entries: int
    seconds: float
    left: int  #: exchanges that no entry ended


async def cost(rate: int, seconds: float) -> Cost:
    """Receive ``rate`` entries a second for ``seconds``."""
    unseen, count = _Told(Pool(), SystemClock()), int(rate * seconds)
    ledger, port = Ledger(), free_port()
    for i in range(count):
        unseen.adopt(_exchange(i, ledger))
    sender = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "epp.bench.access_log",
        f"--port={port}", f"--rate={rate}", f"--count={count}",
    )  # fmt: skip
    server = RpcServer(AccessLogs(unseen).methods, most_bytes=(MOST_BYTES, MOST_BYTES))
    server.bind(HOST, port)
    await server.start()
    try:
        await asyncio.wait_for(unseen.opened.wait(), START_SECONDS)
        garbage.settle()  # as `epp serve` does
        cpu, began = time.process_time(), time.perf_counter()
        await asyncio.wait_for(unseen.closed.wait(), seconds + END_SECONDS)
        cpu, took = time.process_time() - cpu, time.perf_counter() - began
    finally:
        if sender.returncode is None:
            sender.kill()
        await sender.wait()
        await server.stop(None)
    return Cost(100 * cpu / took, 1000 * cpu / count, count, took, len(unseen))


class _Told(Unseen):
    """Says when the log is connected and when it is over: looking often would be measured, too."""

    def __init__(self, pool: Pool, clock: SystemClock) -> None:
        super().__init__(pool, clock)
        self.opened, self.closed = asyncio.Event(), asyncio.Event()

    def log_opened(self) -> None:
        super().log_opened()
        self.opened.set()

    def log_closed(self) -> None:
        super().log_closed()
        self.closed.set()


def _exchange(number: int, ledger: Ledger) -> Exchange:
    request = InferenceRequest(_name(number), {}, b"", prompt_tokens=900)
    reservation = ledger.reserve(ENDPOINT, 900)
    exchange = Exchange(
        request, Pick((ENDPOINT,)), (), (reservation,), clock=SystemClock(), on_error=_raise
    )
    exchange.name = _name(number)  # the sender is to know it
    return exchange


def _raise(_observer: Observer, error: Exception) -> None:
    raise error


def _name(number: int) -> str:
    return f"5f3b1c9e-0000-4000-8000-{number:012d}"


async def send(port: int, rate: int, count: int) -> None:
    """Be the gateway: send ``count`` entries, ``rate`` a second."""
    loop = asyncio.get_running_loop()
    entries = [_entry(number) for number in range(count)]
    async with grpc.aio.insecure_channel(f"{HOST}:{port}") as channel:
        call = channel.stream_unary(
            f"/{SERVICE}/StreamAccessLogs",
            request_serializer=als_pb2.StreamAccessLogsMessage.SerializeToString,
            response_deserializer=als_pb2.StreamAccessLogsResponse.FromString,
        )(wait_for_ready=True)
        began, sent = loop.time(), 0
        while sent < count:
            await asyncio.sleep(FLUSH_SECONDS)
            due = min(int((loop.time() - began) * rate), count)
            message = als_pb2.StreamAccessLogsMessage()
            message.http_logs.log_entry.extend(entries[sent:due])
            await call.write(message)
            sent = due
        await call.done_writing()
        await call


def _entry(number: int) -> accesslog_pb2.HTTPAccessLogEntry:
    entry = accesslog_pb2.HTTPAccessLogEntry()
    entry.request.request_id = _name(number)
    entry.request.path = "/v1/chat/completions"
    entry.response.response_code.value = 200
    entry.response.response_body_bytes = 20_000
    entry.response.response_headers["content-type"] = "text/event-stream; charset=utf-8"
    common = entry.common_properties
    common.access_log_type = accesslog_pb2.DownstreamEnd
    place = common.upstream_remote_address.socket_address
    place.address, place.port_value = HOST, PORT
    common.time_to_last_rx_byte.nanos = 300_000
    common.duration.seconds = 1
    told = {"prompt_tokens": 900, "completion_tokens": 100, "cached_tokens": 512}
    name = {EXCHANGE: _name(number)}
    common.metadata.filter_metadata[METADATA].update({**told, **name, "first_chunk_ms": 40})
    return entry


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--rate", type=int, default=2000)
    parser.add_argument("--count", type=int, default=10_000)
    parsed = parser.parse_args()
    uvloop.run(send(parsed.port, parsed.rate, parsed.count))
