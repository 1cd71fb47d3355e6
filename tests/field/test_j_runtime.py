"""Field problems of operation, shown by one real picker process."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path

import msgspec
import pytest

from epp.build import Parts, configure
from epp.clock import SystemClock
from epp.ledger import Ledger
from epp.model import Arrival
from epp.pool import Pool
from tests.support import build, ext_proc
from tests.support.ext_proc import Gateway
from tests.support.serving import (
    NOT_SERVING,
    SERVING,
    Refused,
    Serving,
    answer,
    ask,
    at_rest,
    complete,
    eventually,
    in_parallel,
    prompt_body,
    serving,
    with_engines,
)

MIB = 2**20


async def running(picker: Serving) -> set[float]:
    """Every value of the gauge of running requests."""
    page = (await picker.get("/metrics"))[1]
    lines = [line for line in page.splitlines() if line.startswith("llm_d_epp_request_running{")]
    return {float(line.rsplit(" ", 1)[1]) for line in lines}


async def series(picker: Serving) -> set[str]:
    page = (await picker.get("/metrics"))[1]
    return {line.rsplit(" ", 1)[0] for line in page.splitlines() if not line.startswith("#")}


# --- nothing grows -----------------------------------------------------------------


def head(name: str) -> ext_proc.pb.ProcessingRequest:
    return ext_proc.request_head({"content-type": "application/json", "x-request-id": name})


async def end_early(stream: ext_proc.Stream, way: int, name: str) -> None:
    """End before there is a pick."""
    await stream.send(head(name))
    if way == 1:  # the client leaves within the body
        await stream.send(ext_proc.request_body(b'{"model":"m","prompt":"' + b"x" * 5000))
    elif way == 2:  # no JSON
        await stream.send(ext_proc.request_body(b'{"model"', ends=True))
        assert (await stream.read()).immediate_response.status.code == 400
    elif way == 3:  # over the limit
        for _ in range(3):
            await stream.send(ext_proc.request_body(b"x" * 50_000))
        assert (await stream.read()).immediate_response.status.code == 413


async def end_late(stream: ext_proc.Stream, way: int) -> None:
    """End after the pick."""
    if way == 4:  # no answer: the lean mode, or a client that left
        await stream.close()
    elif way == 6:  # within the answer
        await stream.send(ext_proc.response_head())
        await stream.read()
    elif way >= 7:
        await answer(stream, 500 if way == 7 else 200)


async def end_somehow(gateway: Gateway, number: int) -> None:
    """One exchange, ending in one of ten ways."""
    way, name = number % 10, f"r-{number}"
    async with gateway.stream() as stream:
        if way < 4:
            await end_early(stream, way, name)
            return
        await ask(stream, f"prompt {number} " * 100, name=name)
        await end_late(stream, way)


def test_b155_2000_exchanges_that_end_in_ten_ways_leave_nothing_behind(tmp_path: Path) -> None:
    async def step(picker: Serving) -> None:
        async def some(number: int) -> None:
            await end_somehow(picker.gateway, number)

        await in_parallel(1000, some)
        await at_rest(picker)
        first, files, memory = await series(picker), picker.open_files(), picker.memory()
        await in_parallel(1000, some)
        state = await at_rest(picker)
        new = await series(picker) - first
        assert {each for each in new if "errors_total" not in each} == set()  # of slow scrapes
        assert abs(picker.open_files() - files) <= 4  # connections to the engines and of ours
        assert await running(picker) == {0.0}
        assert await picker.metric("llm_d_epp_extproc_streams_inflight") == 0.0
        assert state["unmatched_log_entries"] == 0
        assert picker.memory() - memory < 20
        assert '"level":"error"' not in picker.log()

    with_engines(tmp_path, step, "--max-body-bytes=100000")


def test_b174_model_names_that_clients_make_up_are_not_series_without_end(tmp_path: Path) -> None:
    """Field problem B174 (llm-d/llm-d-router#1625): the model label came from the body."""

    async def step(picker: Serving) -> None:
        async def one(number: int) -> None:
            body = msgspec.json.encode({"model": f"made-up-{number}", "prompt": "x"})
            async with picker.gateway.stream() as stream:
                await stream.send(ext_proc.request_head({"content-type": "application/json"}))
                await stream.send(ext_proc.request_body(body, ends=True))
                await stream.read()
                await stream.read()
                await answer(stream)

        async def names() -> set[str]:
            return {each for each in await series(picker) if "request_total{" in each}

        await in_parallel(1050, one)
        before = await names()
        await in_parallel(250, one)
        await at_rest(picker)
        assert await names() == before
        assert any('model_name="other"' in each for each in before)
        assert await running(picker) == {0.0}

    with_engines(tmp_path, step)


def test_b180_streams_that_clients_reset_leak_no_memory(tmp_path: Path) -> None:
    """Field problem B180 (grpc/grpc#43360): a handler that swallows its cancellation leaks."""

    async def step(picker: Serving) -> None:
        async def reset(number: int) -> None:
            if number % 8 == 0:  # no flood: gRPC refuses streams if resets pile up
                await complete(picker.gateway)
            async with picker.gateway.stream() as stream:
                await stream.send(ext_proc.request_head({"x-request-id": f"r-{number}"}))
                if number % 2:
                    await stream.send(ext_proc.request_body(b"x" * 1000))

        await in_parallel(1500, reset)
        await at_rest(picker)
        before = picker.memory()
        await in_parallel(3000, reset)
        await at_rest(picker)
        assert picker.memory() - before < 20
        assert await complete(picker.gateway)

    with_engines(tmp_path, step)


def test_b182_aborted_requests_leave_no_connection_to_an_engine(tmp_path: Path) -> None:
    """Field problem B182 (grpc/grpc#43462): abandoned outgoing calls were never ended."""

    async def main() -> None:
        connections = 0

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal connections
            connections += 1
            try:
                while (await reader.readuntil(b"\r\n\r\n")) != b"":
                    body = b'vllm:num_requests_running{model_name="m"} 0\n'
                    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body)
                    writer.write(head + body)
            except (asyncio.IncompleteReadError, ConnectionError):
                pass
            finally:
                connections -= 1
                writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server, serving(tmp_path, endpoints=f"--endpoints={address}") as picker:

            async def abort(number: int) -> None:
                async with picker.gateway.stream() as stream:
                    await ask(stream, name=f"r-{number}")

            await in_parallel(500, abort)
            await at_rest(picker)
            assert connections <= 1  # the scraper's
            await picker.child.stop()

            async def none() -> bool:
                return connections == 0

            await eventually(none)

    asyncio.run(main())


def test_b183_large_bodies_are_given_back(tmp_path: Path) -> None:
    """Field problem B183 (grpc/grpc#34843): the server's memory grew with the load."""

    async def step(picker: Serving) -> None:
        async def bodies(count: int) -> None:
            for number in range(count):
                size = 10 * MIB if number % 2 else 1024
                async with picker.gateway.stream() as stream:
                    await stream.send(ext_proc.request_head())
                    for start in range(0, size, MIB):
                        await stream.send(
                            ext_proc.request_body(b"x" * min(MIB, size), ends=start + MIB >= size)
                        )
                    await stream.read()

        await bodies(20)
        await at_rest(picker)
        before = picker.memory()
        await bodies(60)
        await at_rest(picker)
        assert picker.memory() - before < 100  # of 300 that went through

    with_engines(tmp_path, step)


# --- the loop is not blocked -------------------------------------------------------


def test_b177_health_answers_while_many_long_prompts_are_open(tmp_path: Path) -> None:
    """Field problem B177 (vllm-project/production-stack#1016): probes starved under load."""
    count, prompt = 1000, prompt_body("x" * 32_768)

    async def step(picker: Serving) -> None:
        opened, close = 0, asyncio.Event()
        slowest, start = 0.0, time.monotonic()

        async def hold(number: int) -> None:
            nonlocal opened
            async with picker.gateway.stream() as stream:
                stream.bound = 60.0
                head = {"content-type": "application/json", "x-request-id": f"r-{number}"}
                await stream.send(ext_proc.request_head(head))
                await stream.send(ext_proc.request_body(prompt, ends=True))
                await stream.read()
                opened += 1
                await close.wait()

        async def probe() -> None:
            nonlocal slowest
            while opened < count:
                began = time.monotonic()
                assert (await picker.get("/healthz"))[0] == 200
                assert await picker.health() == SERVING
                slowest = max(slowest, time.monotonic() - began)
                await asyncio.sleep(0.05)
            close.set()

        async with asyncio.TaskGroup() as group:
            group.create_task(probe())
            for number in range(count):
                group.create_task(hold(number))
        # Two probes in a row, and this process is as busy: a part of the time that it all takes.
        assert 0.0 < slowest < max(2.0, (time.monotonic() - start) / 3)

    with_engines(tmp_path, step)


def test_b187_a_long_prompt_holds_the_loop_for_milliseconds() -> None:
    """Field problem B187 (grpc/grpc#29508): CPU work of one request stops all others."""
    parts = Parts(SystemClock(), random.Random(0), Ledger(), Pool())
    pipeline = configure(None, parts)[1]
    body = prompt_body("".join(random.Random(0).choices("abcdefgh ", k=4 * MIB)))
    endpoints = (build.endpoint("a"), build.endpoint("b"))

    def seconds() -> float:
        began = time.thread_time()
        request = pipeline.formats.parse(Arrival("r", {":path": "/v1/completions"}, body), 0.0)
        for enricher in pipeline.enrichers:
            request = enricher.enrich(request, endpoints)  # type: ignore[assignment]
        pipeline.scheduler.pick(request, endpoints)
        return time.thread_time() - began

    took = [seconds() for _ in range(5)]
    assert min(took) < 0.02


def test_b190_a_long_prompt_makes_the_picker_call_nobody(tmp_path: Path) -> None:
    """Field problem B190 (vllm-project/production-stack#1016): a tokenizer was downloaded."""

    def connections(picker: Serving) -> set[str]:
        """Addresses, as the kernel writes them, at the other end of the picker's sockets."""
        mine = set()
        for link in Path(f"/proc/{picker.child.pid}/fd").iterdir():
            try:
                mine.add(str(link.readlink()).removeprefix("socket:[").removesuffix("]"))
            except FileNotFoundError:
                continue
        found = set()
        for table in ("tcp", "tcp6"):
            for line in Path(f"/proc/{picker.child.pid}/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[9] in mine:
                    found.add(fields[2].partition(":")[0])
        return found

    loopback = {"00000000", "0100007F", "0" * 32, "0000000000000000FFFF00000100007F"}

    async def step(picker: Serving) -> None:
        began = time.monotonic()
        for number in range(3):
            await complete(picker.gateway, "word " * 30_000, name=f"r-{number}")
            assert connections(picker) <= loopback
        assert time.monotonic() - began < 10.0
        assert await picker.health() == SERVING

    with_engines(tmp_path, step)


# --- ports and readiness -----------------------------------------------------------


def test_b186_a_second_picker_on_the_port_does_not_start(tmp_path: Path) -> None:
    """Field problem B186 (grpc/grpc#17659): two processes shared a port, one got all streams."""

    async def step(picker: Serving) -> None:
        with pytest.raises(RuntimeError, match="cannot listen on"):
            async with serving(tmp_path / "..", f"--grpc-port={picker.ports.grpc}"):
                pass
        assert await complete(picker.gateway)

    with_engines(tmp_path, step)


def test_b194_a_picker_that_does_not_know_its_endpoints_is_not_ready(tmp_path: Path) -> None:
    """Field problem B194 (envoyproxy/gateway PR 7430): ready before the pool was known."""

    async def main() -> None:
        flags = ("--pool-namespace=default",)
        async with serving(tmp_path, *flags, endpoints="--pool-name=pool") as picker:
            assert await picker.health() == NOT_SERVING
            assert await picker.health("liveness") == SERVING
            assert (await picker.get("/readyz"))[0] == 503
            assert (await picker.get("/healthz"))[0] == 200
            async with picker.gateway.stream() as stream:
                with pytest.raises(Refused) as refused:
                    await ask(stream)
            assert refused.value.args == (503,)

    asyncio.run(main())


def test_b195_a_connection_that_died_silently_costs_one_scrape(tmp_path: Path) -> None:
    """Field problem B195 (sgl-project/sglang#9926): requests failed after idling."""

    async def main() -> None:
        answered = 0

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            """Answer the first request of a connection; nothing more is ever heard on it."""
            nonlocal answered
            await reader.readuntil(b"\r\n\r\n")
            body = b'vllm:num_requests_running{model_name="m"} 0\n'
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            answered += 1
            await reader.read(-1)
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server, serving(tmp_path, endpoints=f"--endpoints={address}") as picker:

            async def again() -> bool:
                return answered >= 2

            await eventually(again, bound=20.0)
            assert await complete(picker.gateway) == address
            await picker.child.stop()

    asyncio.run(main())


@pytest.mark.parametrize(("secure", "speaks"), [("true", "TLS"), ("false", "plain text")])
def test_b198_the_log_says_what_the_port_speaks_and_how_to_change_it(
    tmp_path: Path, secure: str, speaks: str
) -> None:
    """Field problem B198 (kgateway-dev/kgateway#11429): one side spoke TLS, nobody said so."""

    async def main() -> None:
        async with serving(tmp_path, f"--secure-serving={secure}") as picker:
            other = "false" if secure == "true" else "true"
            assert f"speaks {speaks}" in picker.log()
            assert f"--secure-serving={other}" in picker.log()
            assert await picker.health() == SERVING  # the health port is plain either way

    asyncio.run(main())
