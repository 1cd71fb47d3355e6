"""SIGTERM: nothing that is under way is dropped, and the process ends. The real process."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2

from tests.support import ext_proc
from tests.support.serving import (
    NOT_SERVING,
    SERVING,
    Refused,
    Serving,
    answer,
    ask,
    complete,
    eventually,
    serving,
)

#: what a gateway sees of a stream that it opened as the port closed
TURNED_AWAY = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
ENDED_MEANWHILE = "Internal error from Core"
"""What grpcio's client itself says of a message that it was sending when the stream ended; of one
that it was about to send it says InvalidStateError."""


async def not_ready(picker: Serving) -> None:
    async def off() -> bool:
        return await picker.health() == NOT_SERVING

    await eventually(off)


async def refused(picker: Serving) -> None:
    """Wait until a new connection finds the port closed."""

    async def closed() -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", picker.ports.grpc)
        except ConnectionRefusedError:
            return True
        except ConnectionResetError:
            return False  # it closes at this very moment
        writer.close()
        return False

    await eventually(closed)


def test_readiness_goes_first_then_the_port_and_open_streams_finish(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path, "--drain-timeout=20s") as picker:
            assert await picker.health() == SERVING
            async with picker.gateway.stream() as stream, ext_proc.Gateway(
                picker.ports.grpc
            ) as other:  # fmt: skip
                await ask(stream, name="slow")
                await complete(other)  # the other gateway is connected
                picker.signal(signal.SIGTERM)

                await not_ready(picker)
                assert await picker.health("liveness") == SERVING
                assert (await picker.get("/readyz"))[0] == 503
                assert (await picker.get("/healthz"))[0] == 200
                assert await complete(other)  # not ready, and yet it serves

                await refused(picker)
                assert await picker.metric("llm_d_epp_extproc_streams_inflight") == 1.0
                state = await picker.state()
                assert state["draining"] is True
                await answer(stream)
            assert await asyncio.wait_for(picker.child.process.wait(), 10.0) == 0
        log = picker.log()
        assert "draining" in log
        assert '"msg":"stopped"' in log
        assert "Traceback" not in log

    asyncio.run(main())


def test_streams_that_come_while_it_drains_are_refused_and_no_old_one_is(tmp_path: Path) -> None:
    """Under load, each exchange that was answered with a destination also gets its answer."""

    async def main() -> None:
        finished, turned_away = 0, 0
        stop = asyncio.Event()

        async def caller(picker: Serving, number: int) -> None:
            nonlocal finished, turned_away
            async with ext_proc.Gateway(picker.ports.grpc) as gateway:
                while not stop.is_set():
                    async with gateway.stream() as stream:
                        try:
                            await ask(stream, name=f"r-{number}-{finished}")
                        except Refused as error:
                            assert error.args == (503,)
                            turned_away += 1
                            return
                        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                            if await stream.call.details() != ENDED_MEANWHILE:
                                assert await stream.call.code() in TURNED_AWAY
                            turned_away += 1
                            return
                        await asyncio.sleep(0.01)
                        await answer(stream)
                        finished += 1

        async with (
            serving(tmp_path, "--drain-timeout=20s") as picker,
            asyncio.TaskGroup() as group,
        ):
            for number in range(8):
                group.create_task(caller(picker, number))

            async def warm() -> bool:
                return finished >= 50

            await eventually(warm)
            picker.signal(signal.SIGTERM)
            assert await asyncio.wait_for(picker.child.process.wait(), 30.0) == 0
            stop.set()
        assert finished >= 50
        assert turned_away == 8
        assert "did not end in" not in picker.log()
        assert '"level":"error"' not in picker.log()

    asyncio.run(main())


def test_an_idle_picker_ends_well_when_interrupted(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as picker:
            await complete(picker.gateway)
            picker.signal(signal.SIGINT)
            assert await asyncio.wait_for(picker.child.process.wait(), 10.0) == 0
        assert "Traceback" not in picker.log()

    asyncio.run(main())


def test_a_stream_that_does_not_end_is_cut_off_after_the_grace_time(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            serving(tmp_path, "--drain-timeout=1s") as picker,
            picker.gateway.stream() as stream,
        ):
            await ask(stream)
            picker.signal(signal.SIGTERM)
            assert await asyncio.wait_for(picker.child.process.wait(), 15.0) == 0
            assert await stream.call.code() == grpc.StatusCode.UNAVAILABLE
        assert "1 streams did not end in 1.0 s" in picker.log()

    asyncio.run(main())


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            serving(tmp_path, "--drain-timeout=60s") as picker,
            picker.gateway.stream() as stream,
        ):
            await ask(stream)
            picker.signal(signal.SIGTERM)
            await refused(picker)
            began = time.monotonic()
            picker.signal(signal.SIGTERM)
            assert await asyncio.wait_for(picker.child.process.wait(), 30.0) == 0
            assert time.monotonic() - began < 30.0
        assert "told again to stop" in picker.log()
        assert "Traceback" not in picker.log()

    asyncio.run(main())


def test_watches_of_health_do_not_hold_the_end_up(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path, "--drain-timeout=60s") as picker:
            watch = picker.gateway.channel.unary_stream(
                "/grpc.health.v1.Health/Watch",
                request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
                response_deserializer=health_pb2.HealthCheckResponse.FromString,
            )(health_pb2.HealthCheckRequest())
            assert (await asyncio.wait_for(watch.read(), 5.0)).status == SERVING
            picker.signal(signal.SIGTERM)
            assert (await asyncio.wait_for(watch.read(), 5.0)).status == NOT_SERVING
            assert await asyncio.wait_for(picker.child.process.wait(), 15.0) == 0
            watch.cancel()

    asyncio.run(main())
