"""The picker's ports: health, TLS, pings, and draining."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from operator import methodcaller
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2 as health_pb

from epp.extproc.port.health import HealthService
from epp.extproc.port.listen import build_health_server, build_server
from epp.model import Outcome
from epp.process.server_tls import self_signed, server_context
from tests.support import ext_proc as gw
from tests.support.ext_proc import Gateway, Picker

SERVING, NOT_SERVING, UNKNOWN = 1, 2, 3
EXT_PROC = "envoy.service.ext_proc.v3.ExternalProcessor"
READINESS = ["", "readiness", EXT_PROC, "inference-extension"]


class Health:
    """A health client."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        ask, tell = health_pb.HealthCheckRequest, health_pb.HealthCheckResponse
        name = "/grpc.health.v1.Health/"
        self._check = channel.unary_unary(name + "Check", ask.SerializeToString, tell.FromString)
        self._list = channel.unary_unary(
            name + "List",
            health_pb.HealthListRequest.SerializeToString,
            health_pb.HealthListResponse.FromString,
        )
        self._watch = channel.unary_stream(name + "Watch", ask.SerializeToString, tell.FromString)

    async def check(self, service: str) -> int:
        answer = await self._check(health_pb.HealthCheckRequest(service=service))
        return int(answer.status)

    async def list(self) -> dict[str, int]:
        answer = await self._list(health_pb.HealthListRequest())
        return {name: status.status for name, status in answer.statuses.items()}

    def watch(self, service: str) -> Any:
        return self._watch(health_pb.HealthCheckRequest(service=service))


async def status_of(call: Any) -> int:
    answer = await asyncio.wait_for(call.read(), 5.0)
    assert answer is not grpc.aio.EOF
    return int(answer.status)


def on_health_port(
    script: Callable[[Health, HealthService, list[bool]], Awaitable[None]], *, elected: bool = False
) -> None:
    """Run a script against a health port that is ready as long as ``ready[0]``."""

    async def main() -> None:
        ready = [True]
        service = HealthService(lambda: ready[0], elected=elected)
        server, port = build_health_server(service, host="127.0.0.1")
        await server.start()
        try:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                await script(Health(channel), service, ready)
        finally:
            await server.stop(None)

    asyncio.run(main())


# --- health ------------------------------------------------------------------------


@pytest.mark.parametrize("name", READINESS)
def test_readiness_follows_the_picker(name: str) -> None:
    async def script(health: Health, service: HealthService, ready: list[bool]) -> None:
        assert await health.check(name) == SERVING
        ready[0] = False
        assert await health.check(name) == NOT_SERVING
        ready[0] = True
        service.drain()
        assert await health.check(name) == NOT_SERVING

    on_health_port(script)


def test_liveness_is_serving_whatever_happens() -> None:
    async def script(health: Health, service: HealthService, ready: list[bool]) -> None:
        ready[0] = False
        service.drain()
        assert await health.check("liveness") == SERVING

    on_health_port(script)


def test_a_name_that_no_elected_picker_has_is_not_found_and_watched_as_unknown() -> None:
    async def script(health: Health, service: HealthService, ready: list[bool]) -> None:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await health.check("nobody")
        assert caught.value.code() == grpc.StatusCode.NOT_FOUND
        call = health.watch("nobody")
        assert await status_of(call) == UNKNOWN
        call.cancel()

    on_health_port(script, elected=True)


def test_a_watcher_hears_each_change() -> None:
    async def script(health: Health, service: HealthService, ready: list[bool]) -> None:
        call = health.watch("readiness")
        assert await status_of(call) == SERVING
        ready[0] = False
        assert await status_of(call) == NOT_SERVING
        ready[0] = True
        assert await status_of(call) == SERVING
        service.drain()
        assert await status_of(call) == NOT_SERVING
        call.cancel()

    on_health_port(script)


def test_list_names_every_service() -> None:
    async def script(health: Health, service: HealthService, ready: list[bool]) -> None:
        ready[0] = False
        expected = {**dict.fromkeys(READINESS, NOT_SERVING), "liveness": SERVING}
        assert await health.list() == expected

    on_health_port(script)


def test_health_is_served_on_the_ext_proc_port_too() -> None:
    picker = Picker()

    async def main() -> None:
        async with picker.serving() as gateway:
            assert await Health(gateway.channel).check(EXT_PROC) == SERVING

    asyncio.run(main())


# --- TLS ---------------------------------------------------------------------------

HTTP_2 = methodcaller("set_alpn_protocols", ["h2"])


def write(directory: Path, pair: tuple[bytes, bytes]) -> None:
    (directory / "tls.key").write_bytes(pair[0])
    (directory / "tls.crt").write_bytes(pair[1])


async def ask(channel: grpc.aio.Channel) -> str:
    async with Gateway(0, channel=channel) as gateway:
        return gw.destination((await gateway.exchange([gw.request_head(ends=True)]))[0])


def channel_to(port: int, trusted: bytes | None) -> grpc.aio.Channel:
    """A connection of its own; plain if nothing is trusted."""
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
    if trusted is None:
        return grpc.aio.insecure_channel(f"localhost:{port}", options=options)
    credentials = grpc.ssl_channel_credentials(trusted)
    return grpc.aio.secure_channel(f"localhost:{port}", credentials, options=options)


def test_tls_with_a_certificate_that_is_renewed_while_serving(tmp_path: Path) -> None:
    old, new = self_signed(), self_signed()
    write(tmp_path, old)

    async def main() -> None:
        server = build_server(
            Picker().service, host="127.0.0.1", tls=server_context(tmp_path, HTTP_2)
        )
        await server.start()
        try:
            assert await ask(channel_to(server.port, old[1])) == "10.0.0.1:8000"
            write(tmp_path, new)
            assert await ask(channel_to(server.port, new[1])) == "10.0.0.1:8000"
            with pytest.raises(grpc.aio.AioRpcError, match="CERTIFICATE_VERIFY_FAILED"):
                await ask(channel_to(server.port, old[1]))
        finally:
            await server.stop()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("secure", "said"),
    [
        pytest.param(True, "speaks TLS", id="plain client"),
        pytest.param(False, "speaks plain text", id="TLS client"),
    ],
)
def test_b198_a_client_in_the_wrong_mode_fails_at_once_and_the_log_says_the_mode(
    secure: bool, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Field problem B198: a silent hang where one side speaks TLS (kgateway-dev/kgateway#11429)."""

    async def main() -> None:
        server = build_server(
            Picker().service, host="127.0.0.1", tls=server_context(None, HTTP_2) if secure else None
        )
        await server.start()
        try:
            began = time.monotonic()
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                trusted = None if secure else self_signed()[1]
                await asyncio.wait_for(ask(channel_to(server.port, trusted)), 5.0)
            assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
            assert time.monotonic() - began < 2.0
        finally:
            await server.stop()

    with caplog.at_level(logging.INFO, logger="epp"):
        asyncio.run(main())
    assert said in caplog.text
    assert "--secure-serving" in caplog.text


# --- pings -------------------------------------------------------------------------


def test_a_gateway_that_pings_often_is_not_sent_away() -> None:
    """A server with gRPC's defaults answers the third early ping with GOAWAY: too_many_pings."""
    picker = Picker()

    async def main() -> None:
        async with picker.serving():
            assert picker.server is not None
            options = [
                ("grpc.keepalive_time_ms", 1_000),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.http2.max_pings_without_data", 0),
                ("grpc.use_local_subchannel_pool", 1),
            ]
            channel = grpc.aio.insecure_channel(f"127.0.0.1:{picker.server.port}", options=options)
            async with Gateway(0, channel=channel) as gateway, gateway.stream() as stream:
                await stream.send(gw.request_head(ends=True))
                await stream.read()
                await asyncio.sleep(5.5)  # five pings; the stream must be open after them
                await stream.send(gw.response_head(ends=True))
                await stream.read()

    asyncio.run(main())
    assert [ending.outcome for ending in picker.diary.endings] == [Outcome.COMPLETED]


# --- draining ----------------------------------------------------------------------


def test_b185_draining_finishes_what_is_open_and_takes_nothing_new() -> None:
    """Field problem B185: streams begun during shutdown were lost (grpc/grpc PR 29050)."""
    picker = Picker()

    async def main() -> float:
        async with picker.serving() as gateway, gateway.stream() as stream:
            assert picker.server is not None
            watch = Health(gateway.channel).watch("readiness")
            assert await status_of(watch) == SERVING
            await stream.send(gw.request_head(), gw.request_body(b"ab"))
            await gw.until(lambda: picker.service.budget.used == 2)
            draining = asyncio.create_task(picker.server.drain(10.0))
            assert await status_of(watch) == NOT_SERVING
            await gw.until(lambda: picker.service.draining)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await ask(channel_to(picker.server.port, None))
            assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
            await stream.send(gw.request_body(b"c", ends=True))
            answers = [await stream.read(), await stream.read()]
            assert [piece.body for piece in gw.pieces(answers)] == [b"abc"]
            await stream.send(gw.response_head(ends=True))
            await stream.read()
            await stream.close()
            assert await stream.rest() == []
            began = time.monotonic()
            await asyncio.wait_for(draining, 5.0)
            return time.monotonic() - began

    # The watch is still open then, and must not hold the drain up until the grace is over.
    assert asyncio.run(main()) < 3.0
    assert [ending.outcome for ending in picker.diary.endings] == [Outcome.COMPLETED]


def test_a_stream_that_does_not_end_is_cancelled_after_the_grace() -> None:
    picker = Picker()

    async def main() -> None:
        async with picker.serving() as gateway, gateway.stream() as stream:
            assert picker.server is not None
            await stream.send(gw.request_head(ends=True))
            await stream.read()
            await asyncio.wait_for(picker.server.drain(0.05), 5.0)
            await gw.until(lambda: picker.service.active == 0)

    asyncio.run(main())
    assert [ending.outcome for ending in picker.diary.endings] == [Outcome.ABANDONED]
    assert picker.in_flight == 0


def test_a_stream_that_slips_in_while_draining_is_answered_503() -> None:
    picker = Picker()

    async def main() -> Any:
        async with picker.serving() as gateway:
            picker.service.draining = True
            (answer,) = await gateway.exchange([gw.request_head()])
            return answer.immediate_response

    immediate = asyncio.run(main())
    assert immediate.status.code == 503
    headers = {o.header.key: o.header.raw_value for o in immediate.headers.set_headers}
    assert headers["x-llm-d-request-dropped-reason"] == b"rejected-shutting-down"
