"""Clients that leave, at every phase of a request and in every way: nothing is left behind."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.support import http1, http2
from tests.support.backend import body, wanted
from tests.support.leaving import CASES, CHAT, PROMPT, Phase, Reached, Way, leave, soon
from tests.support.process import eventually
from tests.support.stack import Stack

pytestmark = pytest.mark.e2e

ABANDONED = 'epp_ended_requests_total{outcome="abandoned"}'
RUNNING = "llm_d_epp_request_running"
CLIENTS = 200


def running(stack: Stack) -> int:
    """Requests that the model servers work on."""
    return sum(stack.counts(number).running for number in range(3))


def ended(stack: Stack) -> dict[str, float]:
    """How many exchanges ended so far, by outcome."""
    name = "epp_ended_requests_total"
    return {key: value for key, value in stack.metrics().items() if key.startswith(name)}


@pytest.mark.parametrize(("phase", "way"), CASES)
def test_a_client_that_leaves_leaves_nothing_behind(stack: Stack, phase: Phase, way: Way) -> None:
    before, reaped = stack.metrics()[ABANDONED], stack.state()["reaped"]

    def reached() -> bool:
        return (stack.state()["streams"] if phase == "body" else running(stack)) > 0

    asyncio.run(leave(stack.port, phase, way, soon(reached)))
    stack.wait_idle()
    eventually(lambda: not running(stack), what="the model servers having nothing to do")
    # A request whose body never came was never routed.
    assert stack.metrics()[ABANDONED] - before == (0 if phase == "body" else 1)
    assert stack.state()["reaped"] == reaped


@pytest.mark.parametrize("way", ["http1-close", "http1-reset", "http2-close", "http2-stream"])
def test_a_client_that_leaves_before_the_picker_has_decided(stack: Stack, way: Way) -> None:
    before = sum(ended(stack).values())
    stack.picker.pause()
    try:
        asyncio.run(leave(stack.port, "head", way, asked_picker(stack)))
    finally:
        stack.picker.resume()
    stack.wait_idle()
    eventually(lambda: not running(stack), what="the model servers having nothing to do")
    assert sum(ended(stack).values()) - before <= 1  # it may have been routed before it was gone


def asked_picker(stack: Stack) -> Reached:
    """Return when Envoy has opened one more stream to the picker."""
    name = "http.epp.ext_proc.streams_started"
    before = stack.envoy_stats(name)[name]
    return soon(lambda: stack.envoy_stats(name)[name] > before)


def test_a_stream_that_is_reset_does_not_disturb_the_others_of_its_connection(
    stack: Stack,
) -> None:
    slow = wanted(kind="bytes", size=20_000, pieces=4, wait=0.1)

    async def run() -> http1.Answer:
        async with http2.Connection(stack.port) as connection:
            other = asyncio.create_task(connection.ask("POST", CHAT, slow, PROMPT))
            number = connection.send_head("POST", CHAT, wanted(kind="hang"), last=False)
            connection.send_data(number, PROMPT, last=True)
            await soon(lambda: running(stack) == 2)()
            connection.reset(number)
            await connection.ask("GET", "/v1/models", wanted())
            return await other

    assert asyncio.run(run()).body == body(20_000, 0)


def test_many_clients_that_leave_at_any_time_do_not_disturb_the_others(stack: Stack) -> None:
    chance = random.Random(7)
    before = sum(ended(stack).values())

    async def one(number: int, seconds: float, case: tuple[Phase, Way] | None) -> int:
        if case is not None:
            await leave(stack.port, *case, lambda: asyncio.sleep(seconds))
            return 0
        headers = wanted(kind="bytes", size=20_000, seed=number, pieces=4, wait=0.05)
        answer = await http1.request(stack.port, "POST", CHAT, headers, PROMPT)
        assert (answer.status, answer.body) == (200, body(20_000, number))
        return 1

    async def run() -> int:
        cases = [chance.choice([*CASES, None, None, None]) for _ in range(CLIENTS)]
        clients = (one(n, chance.random() / 2, case) for n, case in enumerate(cases))
        return sum(await asyncio.gather(*clients))

    polite = asyncio.run(run())
    stack.wait_idle()
    assert polite > 10
    assert polite <= sum(ended(stack).values()) - before <= CLIENTS
    eventually(lambda: not running(stack), what="the model servers having nothing to do")
    flows = {key: v for key, v in stack.metrics().items() if key.startswith(RUNNING)}
    assert flows
    assert not any(flows.values()), flows
