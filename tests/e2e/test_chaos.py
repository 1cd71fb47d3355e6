"""Parts that break under load: whatever was lost, the picker ends with nothing in its hands."""

from __future__ import annotations

import asyncio
import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.backend import wanted
from tests.support.crowd import SLOW, SLOW_BYTES, all_of, quick, summary
from tests.support.process import eventually
from tests.support.relay import Relay
from tests.support.stack import Stack
from tests.support.steady import Load, steady

pytestmark = pytest.mark.e2e

WHOLE, CUT = (200, True), (0, False)
MODES = ["lean", "stock"]
OPEN = {"routing": "override-host", "fail_open": True}
BYTES = 100
BRIEF = wanted(kind="bytes", size=BYTES, pieces=2, wait=0.02, chunked=True)
CLIENTS = 12
KILLS = 2
CUT_SECONDS = 10.0
RECONCILED_SECONDS = (
    20.0  #: scrapes of an idle engine, and the seconds that are waited for an entry
)


class LogApart(Stack):
    """A lean gateway whose access log has a connection of its own, through ``relay``."""

    def __init__(self, folder: Path, relay: Relay) -> None:
        self._relay = relay
        super().__init__(folder, mode="lean")
        relay.target = self.ports.grpc

    def _envoy(self) -> list[str]:
        command = super()._envoy()
        bootstrap = self.folder / "envoy.yaml"
        told = yaml.safe_load(bootstrap.read_text())
        clusters = told["staticResources"]["clusters"]
        log = copy.deepcopy(next(each for each in clusters if each["name"] == "picker"))
        log["name"] = log["loadAssignment"]["clusterName"] = "log"
        place = log["loadAssignment"]["endpoints"][0]["lbEndpoints"][0]["endpoint"]["address"]
        place["socketAddress"].update(address="127.0.0.1", portValue=self._relay.port)
        clusters.append(log)
        filters = told["staticResources"]["listeners"][0]["filterChains"][0]["filters"]
        common = filters[0]["typedConfig"]["accessLog"][0]["typedConfig"]["commonConfig"]
        common["grpcService"]["envoyGrpc"]["clusterName"] = "log"
        bootstrap.write_text(yaml.safe_dump(told))
        return command


def ended(stack: Stack) -> dict[str, int]:
    """How many exchanges ended, by outcome; those that are not 0."""
    name = 'epp_ended_requests_total{outcome="'
    found = {key: int(value) for key, value in stack.metrics().items() if key.startswith(name)}
    return {key.removeprefix(name).removesuffix('"}'): n for key, n in found.items() if n}


def booked(stack: Stack) -> int:
    """Requests in flight by the ledger; none of its numbers may be negative.

    Raises:
        AssertionError: one is.
    """
    pool = stack.pool()
    for endpoint in pool:
        assert min(endpoint["in_flight_requests"], endpoint["in_flight_tokens"]) >= 0, endpoint
    return sum(int(endpoint["in_flight_requests"]) for endpoint in pool)


def new_answers(load: Load, count: int = 100) -> None:
    """Wait until ``count`` more answers are whole."""
    before = summary(load.results)[WHOLE]
    eventually(lambda: summary(load.results)[WHOLE] >= before + count, what="whole answers")


# --- the access log -----------------------------------------------------------------------------


def test_a_log_that_is_cut_for_ten_seconds_under_load_leaves_nothing_booked(
    tmp_path: Path,
) -> None:
    with Relay() as relay, LogApart(tmp_path, relay) as stack:

        async def run() -> Load:
            async with steady(stack.port, BRIEF, clients=CLIENTS, size=BYTES) as load:
                await asyncio.to_thread(new_answers, load)
                await asyncio.to_thread(eventually, lambda: stack.state()["access_logs"])
                await without_log(stack, relay)
                relay.target = stack.ports.grpc
                await asyncio.to_thread(eventually, lambda: stack.state()["access_logs"])
                await asyncio.to_thread(new_answers, load)
            return load

        load = asyncio.run(run())
        assert summary(load.results) == {WHOLE: len(load.results)}
        stack.wait_idle(RECONCILED_SECONDS)
        told = ended(stack)
        assert sum(told.values()) == len(load.results)  # each ended once
        assert set(told) == {"completed", "unknown"}
        assert told["unknown"] == stack.state()["reaped"]
        assert asyncio.run(told_again(stack)) == {"completed": 20}


async def without_log(stack: Stack, relay: Relay) -> None:
    """Cut the log, and watch what is booked meanwhile: not what has long ended."""
    relay.target = 0
    assert await asyncio.to_thread(relay.cut) > 0
    most, deadline = 0, asyncio.get_running_loop().time() + CUT_SECONDS
    while asyncio.get_running_loop().time() < deadline:
        most = max(most, await asyncio.to_thread(booked, stack))
        await asyncio.sleep(0.1)
    left = await asyncio.to_thread(stack.state)
    assert left["access_logs"] == 0
    assert left["open_exchanges"] > 2 * most  # they wait for an entry, without a booking


async def told_again(stack: Stack) -> dict[str, int]:
    """How 20 more requests ended."""
    before = ended(stack)
    assert summary(await quick(stack)) == {WHOLE: 20}
    await asyncio.to_thread(stack.wait_idle)
    return {
        outcome: count - before.get(outcome, 0)
        for outcome, count in ended(stack).items()
        if count > before.get(outcome, 0)
    }


# --- the picker ---------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_a_picker_that_is_killed_under_load_starts_anew_and_ends_with_nothing(
    tmp_path: Path, mode: Any
) -> None:
    with Stack(tmp_path, mode=mode, gateway=OPEN) as stack:

        async def run() -> Load:
            async with steady(stack.port, BRIEF, clients=CLIENTS, size=BYTES) as load:
                for _ in range(KILLS):
                    await asyncio.to_thread(new_answers, load)
                    await asyncio.to_thread(stack.picker.kill)
                    await asyncio.to_thread(stack.start_picker)
                    assert await asyncio.to_thread(booked, stack) <= CLIENTS
                await asyncio.to_thread(new_answers, load)
            return load

        counted = summary(asyncio.run(run()).results)
        # What asked or streamed through the picker as it died is lost, until Envoy notices.
        assert counted[WHOLE] >= 100 * (KILLS + 1)
        assert set(counted) <= {WHOLE, CUT, (500, False)}
        assert counted[CUT] <= KILLS * CLIENTS
        stack.wait_idle(RECONCILED_SECONDS)
        assert "unexpected" not in stack.picker.tail()
        assert asyncio.run(told_again(stack)) == {"completed": 20}


# --- an engine ----------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_an_engine_that_is_killed_amid_its_answers_under_load_leaves_nothing_booked(
    tmp_path: Path, mode: Any
) -> None:
    with Stack(tmp_path, mode=mode, gateway=OPEN, backends=3) as stack:

        async def run() -> tuple[Load, Any]:
            async with steady(stack.port, BRIEF, clients=CLIENTS, size=BYTES) as load:
                slow = asyncio.create_task(all_of(stack.port, SLOW, clients=20, size=SLOW_BYTES))
                await asyncio.to_thread(eventually, lambda: stack.counts(1).running > 2)
                await asyncio.sleep(0.3)  # the heads of slow answers are with their clients
                await asyncio.to_thread(stack.backends[1].kill)
                cut = await slow
                await asyncio.to_thread(stack.start_backend, 1)
                await asyncio.to_thread(new_answers, load)
            return load, cut

        load, cut = asyncio.run(run())
        results = [*load.results, *cut]
        counted = summary(results)
        assert counted[CUT] > 0
        # 503: it had read the whole request; 502: the head of its answer was with the picker yet.
        assert set(counted) <= {WHOLE, CUT, (503, False), (502, False)}
        stack.wait_idle(RECONCILED_SECONDS)
        told = ended(stack)
        assert told["completed"] == counted[WHOLE]
        assert sum(told.values()) == len(results)
        assert stack.state()["reaped"] == 0
        assert asyncio.run(told_again(stack)) == {"completed": 20}
