"""Starts, restarts and ends under load: nothing is lost that could be kept, nothing stays behind."""

from __future__ import annotations

import asyncio
import http.client
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import http1, http2
from tests.support.backend import wanted
from tests.support.crowd import (
    CHAT,
    QUICK,
    QUICK_BYTES,
    SLOW,
    SLOW_BYTES,
    all_of,
    quick,
    summary,
    while_answering,
)
from tests.support.process import eventually
from tests.support.relay import Relay
from tests.support.stack import Stack
from tests.support.steady import keep_alive, steady

pytestmark = pytest.mark.e2e

WHOLE = (200, True)
MODES = ["lean", "stock"]
PROMPT = b'{"model":"m","prompt":"a"}'
FIRST_SECONDS = 2.5
OPEN = {"routing": "override-host", "fail_open": True}


def ended(stack: Stack) -> dict[str, float]:
    """How many exchanges ended so far, by outcome; those that are not 0."""
    name = 'epp_ended_requests_total{outcome="'
    found = {key: value for key, value in stack.metrics().items() if key.startswith(name)}
    return {key.removeprefix(name).removesuffix('"}'): n for key, n in found.items() if n}


# --- the end of a picker ----------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_answers_under_way_at_sigterm_finish_whole(tmp_path: Path, mode: Any) -> None:
    with Stack(tmp_path, mode=mode) as stack:
        results = asyncio.run(while_answering(stack, lambda: terminate(stack)))
        assert summary(results) == {WHOLE: 20}
        assert stack.picker.wait() == 0
        assert "unexpected" not in stack.picker.tail()


def terminate(stack: Stack) -> None:
    """SIGTERM; readiness must go while the picker still serves."""
    stack.picker.signal(signal.SIGTERM)
    eventually(lambda: ready(stack) == 503, what="readiness going")
    assert summary(asyncio.run(quick(stack))) == {WHOLE: 20}
    assert stack.state()["draining"]


def ready(stack: Stack) -> int:
    """Status of ``/readyz``."""
    connection = http.client.HTTPConnection("127.0.0.1", stack.ports.admin, timeout=5)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status
    except OSError:
        return 0
    finally:
        connection.close()


def test_answers_longer_than_the_grace_time_do_not_hold_the_end_up(tmp_path: Path) -> None:
    slow = wanted(kind="bytes", size=1_000, pieces=100, wait=0.1, chunked=True)
    with Stack(tmp_path, mode="stock", serve=("--drain-timeout=0.5s",)) as stack:

        async def run() -> Any:
            waiting = asyncio.create_task(all_of(stack.port, slow, clients=4, size=1_000))
            await asyncio.to_thread(eventually, lambda: stack.state()["streams"] == 4)
            await asyncio.sleep(0.3)
            began = time.monotonic()
            assert await asyncio.to_thread(stack.picker.stop) == 0
            assert time.monotonic() - began < 5
            return await waiting

        assert summary(asyncio.run(run())) == {(0, False): 4}


@pytest.mark.parametrize("mode", MODES)
def test_a_picker_restarted_under_load_costs_no_request_where_the_gateway_fails_open(
    tmp_path: Path, mode: Any
) -> None:
    with Stack(tmp_path, mode=mode, backends=3, gateway=OPEN) as stack:

        async def run() -> tuple[int, list[Any]]:
            async with steady(stack.port, QUICK, clients=6, size=QUICK_BYTES) as load:
                await asyncio.sleep(0.3)
                assert await asyncio.to_thread(stack.picker.stop) == 0
                await asyncio.sleep(0.3)
                await asyncio.to_thread(stack.start_picker)
                before = len(load.results)
                await asyncio.sleep(0.3)
            return before, load.results

        before, results = asyncio.run(run())
        assert before > 100
        assert summary(results) == {WHOLE: len(results)}
        stack.wait_idle()
        assert 0 < ended(stack)["completed"] <= len(results)


@pytest.mark.parametrize("mode", MODES)
def test_a_picker_restarted_under_load_cuts_no_answer_where_the_gateway_fails_closed(
    tmp_path: Path, mode: Any
) -> None:
    with Stack(tmp_path, mode=mode) as stack:

        async def run() -> tuple[list[Any], list[Any]]:
            async with steady(stack.port, QUICK, clients=6, size=QUICK_BYTES) as load:
                await asyncio.sleep(0.3)
                stack.picker.signal(signal.SIGTERM)
                await asyncio.sleep(0.5)
                noticed = list(load.results)
                assert await asyncio.to_thread(stack.picker.wait) == 0
                await asyncio.to_thread(stack.start_picker)
            return noticed, load.results

        noticed, results = asyncio.run(run())
        # Gateways get a moment to ask another picker; then requests are refused, none breaks off.
        assert summary(noticed) == {WHOLE: len(noticed)}
        assert set(summary(results)) <= {WHOLE, (500, False), (503, False)}
        assert summary(asyncio.run(quick(stack))) == {WHOLE: 20}
        stack.wait_idle()


# --- kept connections ---------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_thousands_of_requests_on_kept_connections_leave_nothing_behind(
    tmp_path: Path, mode: Any
) -> None:
    with Stack(tmp_path, mode=mode) as stack:

        async def run() -> list[http1.Answer]:
            both = (keep_alive(stack.port, c, connections=25, each=64) for c in (http1, http2))
            old, new = await asyncio.gather(*both)
            return [*old, *new]

        assert {answer.status for answer in asyncio.run(run())} == {200}
        stack.wait_idle()
        counts = ended(stack)
        assert counts.pop("completed") == 3_200
        assert not any(counts.values())
        state = stack.state()
        assert (state["reaped"], state["unmatched_log_entries"]) == (0, 0)


# --- the access log ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def relayed_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Stack, Relay]]:
    """A lean gateway that reaches its picker through a relay."""
    folder = tmp_path_factory.mktemp("relayed")
    with Relay() as relay:
        gateway = {"picker_port": relay.port}
        stack = Stack(folder, mode="lean", gateway=gateway)
        relay.target = stack.ports.grpc
        with stack:
            yield stack, relay


def test_how_the_first_answer_ends_is_told_however_long_it_takes(tmp_path: Path) -> None:
    slow = wanted(kind="bytes", size=10, wait=FIRST_SECONDS)
    with Stack(tmp_path, mode="lean") as stack:

        def seen_running() -> bool:
            """No log can be connected yet, and the scraped load counts the request."""
            return stack.state()["open_exchanges"] == 1 and not in_flight(stack)

        async def run() -> None:
            waiting = asyncio.create_task(all_of(stack.port, slow, clients=1, size=10))
            await asyncio.to_thread(eventually, lambda: in_flight(stack) == 1)
            await asyncio.to_thread(eventually, seen_running)
            assert not waiting.done()
            assert summary(await waiting) == {WHOLE: 1}

        asyncio.run(run())
        stack.wait_idle(2.0)
        assert ended(stack) == {"completed": 1}
        assert (stack.state()["reaped"], stack.state()["access_logs"]) == (0, 1)


def in_flight(stack: Stack) -> int:
    return sum(endpoint["in_flight_requests"] for endpoint in stack.pool())


def test_nothing_stays_booked_when_the_connection_to_the_picker_breaks_under_load(
    relayed_stack: tuple[Stack, Relay],
) -> None:
    stack, relay = relayed_stack

    async def run() -> list[Any]:
        slow = wanted(kind="bytes", size=100, pieces=4, wait=0.02, chunked=True)
        async with steady(stack.port, slow, clients=40, size=100) as load:
            for _ in range(4):
                await asyncio.sleep(0.3)
                assert await asyncio.to_thread(relay.cut) > 0
            count = len(load.results)
            await asyncio.sleep(0.3)
            assert summary(load.since(count))[WHOLE] > 0
        return load.results

    results = asyncio.run(run())
    counted = summary(results)
    # A request that waited for the picker when it broke is refused, an answer under way goes on.
    assert set(counted) <= {WHOLE, (500, False)}
    stack.wait_idle()
    told = ended(stack)
    assert stack.state()["reaped"] == told.get("unknown", 0) < counted[WHOLE]
    assert told["completed"] + told.get("unknown", 0) >= counted[WHOLE]


def test_answers_under_way_when_the_log_breaks_are_told_by_the_next_log(
    relayed_stack: tuple[Stack, Relay],
) -> None:
    stack, relay = relayed_stack
    asyncio.run(quick(stack))
    stack.wait_idle()
    before, reaped = ended(stack)["completed"], stack.state()["reaped"]
    results = asyncio.run(while_answering(stack, relay.cut))
    assert summary(results) == {WHOLE: 20}
    stack.wait_idle()
    assert (ended(stack)["completed"] - before, stack.state()["reaped"] - reaped) == (20, 0)


@pytest.mark.parametrize("mode", MODES)
def test_nothing_stays_booked_when_the_gateway_is_killed(tmp_path: Path, mode: Any) -> None:
    with Stack(tmp_path, mode=mode) as stack:

        async def run() -> Any:
            waiting = asyncio.create_task(all_of(stack.port, SLOW, clients=20, size=SLOW_BYTES))
            servers = range(2)
            await asyncio.to_thread(
                eventually, lambda: sum(stack.counts(n).running for n in servers) == 20
            )
            await asyncio.to_thread(stack.envoy.kill)
            return await waiting

        asyncio.run(quick(stack))
        stack.wait_idle()  # a killed gateway would take its last entries with it
        assert summary(asyncio.run(run())) == {(0, False): 20}
        stack.start_envoy()
        assert summary(asyncio.run(quick(stack))) == {WHOLE: 20}
        stack.wait_idle()
        lost = {"unknown": 20} if mode == "lean" else {"abandoned": 20}
        assert ended(stack) == {"completed": 40, **lost}
        answer = asyncio.run(http1.request(stack.port, "POST", CHAT, QUICK, PROMPT))
        assert answer.status == 200
