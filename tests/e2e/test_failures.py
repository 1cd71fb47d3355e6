"""Pickers and model servers that die, hang, refuse and come back, behind a real Envoy."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import http1, http2
from tests.support.backend import wanted
from tests.support.crowd import CHAT, QUICK, quick, summary, while_answering
from tests.support.diary import Diary, Ended
from tests.support.process import eventually
from tests.support.stack import Stack

pytestmark = pytest.mark.e2e

WHOLE, CUT = (200, True), (0, False)
PROMPT = b'{"model":"m","prompt":"a"}'
SOON_SECONDS = 2.0  #: an error that comes later is no better than a time-out
MODES = ["lean", "stock"]
BACKENDS = 3
PICKED_BY_CHANCE = 40  #: requests among which one is sent to each of two model servers
ROUNDS = 5  #: in each a model server dies, until one is asked before the picker knows


class Gateway:
    """A stack and what its picker's observers heard."""

    def __init__(self, stack: Stack, diary: Diary) -> None:
        self.stack = stack
        self._diary = diary
        self._before = 0

    def begin(self) -> None:
        self._before = len(self._diary.read())

    def endings(self) -> list[Ended]:
        """Those of this test, once all has ended."""
        self.stack.wait_idle()
        return self._diary.read()[self._before :]


def gateway(folder: Any, mode: Any, **options: Any) -> Iterator[Gateway]:
    diary = Diary(folder)
    with Stack(folder, mode=mode, backends=BACKENDS, serve=diary.serve, gateway=options) as stack:
        yield Gateway(stack, diary)


@pytest.fixture(scope="module", params=MODES)
def closed_gateway(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    yield from gateway(tmp_path_factory.mktemp("closed"), request.param)


@pytest.fixture(scope="module", params=MODES)
def open_gateway(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("open")
    yield from gateway(folder, request.param, routing="override-host", fail_open=True)


@pytest.fixture
def closed(closed_gateway: Gateway) -> Iterator[Gateway]:
    """Fails without a picker; sends to where the picker says and nowhere else."""
    yield from whole(closed_gateway)


@pytest.fixture
def opened(open_gateway: Gateway) -> Iterator[Gateway]:
    """Goes on without a picker; retries on other endpoints."""
    yield from whole(open_gateway)


def whole(gateway: Gateway) -> Iterator[Gateway]:
    """All parts run before and after, and the picker ends with nothing in its hands."""
    gateway.begin()
    yield gateway
    stack = gateway.stack
    for number in range(BACKENDS):
        if not stack.backends[number].running:
            stack.start_backend(number)
    if not stack.picker.running:
        stack.start_picker()
    serving(stack)
    stack.wait_idle()
    assert "unexpected" not in stack.picker.tail()


def serving(stack: Stack) -> None:
    """Wait until the picker answers for all model servers."""

    def all_reachable() -> bool:
        return all(endpoint["reachable"] for endpoint in stack.pool())

    eventually(all_reachable, what="all endpoints being reachable")
    before = picks(stack)
    eventually(lambda: asyncio.run(quick(stack, 1))[0].intact and picks(stack) > before)


def picks(stack: Stack) -> float:
    name = "llm_d_epp_scheduler_attempts_total"
    return sum(value for key, value in stack.metrics().items() if key.startswith(name))


# --- the picker -------------------------------------------------------------------------------


def test_without_a_picker_a_gateway_that_fails_closed_says_so_until_it_is_back(
    closed: Gateway,
) -> None:
    closed.stack.picker.kill()
    results = asyncio.run(quick(closed.stack))
    assert summary(results) == {(500, False): 20}
    assert max(result.seconds for result in results) < SOON_SECONDS
    closed.stack.start_picker()
    serving(closed.stack)
    assert summary(asyncio.run(quick(closed.stack))) == {WHOLE: 20}


def test_without_a_picker_a_gateway_that_fails_open_goes_on(opened: Gateway) -> None:
    stack = opened.stack
    stack.picker.kill()
    unhealthy(stack)
    results = asyncio.run(quick(stack, 60))
    assert summary(results) == {WHOLE: 60}
    assert {result.backend for result in results} == {"backend-0", "backend-1", "backend-2"}
    stack.start_picker()
    serving(stack)


def test_a_gateway_that_fails_open_goes_on_without_a_picker_that_hangs(opened: Gateway) -> None:
    stack = opened.stack
    stack.picker.pause()
    try:
        unhealthy(stack)
        assert summary(asyncio.run(quick(stack))) == {WHOLE: 20}
    finally:
        stack.picker.resume()


def test_requests_that_wait_for_a_picker_that_hangs_are_answered_when_it_goes_on(
    closed: Gateway,
) -> None:
    stack = closed.stack

    async def run() -> Any:
        stack.picker.pause()
        try:
            waiting = asyncio.create_task(quick(stack))
            await asyncio.sleep(0.5)
            assert not waiting.done()
        finally:
            stack.picker.resume()
        return await waiting

    assert summary(asyncio.run(run())) == {WHOLE: 20}


def unhealthy(stack: Stack) -> None:
    """Wait until Envoy knows that the picker is down."""
    name = "cluster.picker.membership_healthy"
    eventually(lambda: stack.envoy_stats(name)[name] == 0, what="Envoy noticing")


def test_lean_answers_go_on_when_the_picker_is_restarted_and_stock_answers_are_cut(
    closed: Gateway,
) -> None:
    stack = closed.stack

    def act() -> None:
        stack.picker.kill()
        stack.start_picker()

    results = asyncio.run(while_answering(stack, act))
    assert summary(results) == {WHOLE if stack.mode == "lean" else CUT: 20}


def test_no_answer_is_silently_shortened_when_the_picker_is_killed(opened: Gateway) -> None:
    stack = opened.stack
    results = summary(asyncio.run(while_answering(stack, stack.picker.kill)))
    # Of stock answers, Envoy lets those go on that it has sent no piece of to the picker.
    assert set(results) <= ({WHOLE} if stack.mode == "lean" else {WHOLE, CUT})


# --- model servers ----------------------------------------------------------------------------


@pytest.mark.parametrize("reset", [False, True], ids=["FIN", "RST"])
def test_a_model_server_that_hangs_up_instead_of_an_answer_is_a_clear_error(
    closed: Gateway, reset: bool
) -> None:
    began = time.monotonic()
    headers = wanted(kind="drop", reset=reset)
    answer = asyncio.run(http1.request(closed.stack.port, "POST", CHAT, headers, PROMPT))
    assert answer.status == 503
    assert time.monotonic() - began < SOON_SECONDS
    (ended,) = closed.endings()
    assert (ended.outcome, ended.status) == ("failed", "503")


@pytest.mark.parametrize(
    ("client", "reset", "chunked"),
    [(http1, False, False), (http1, True, True), (http2, False, True), (http2, True, False)],
    ids=["http1-FIN-length", "http1-RST-chunked", "http2-FIN-chunked", "http2-RST-length"],
)
def test_an_answer_that_breaks_off_is_seen_to_break_off(
    closed: Gateway, client: Any, *, reset: bool, chunked: bool
) -> None:
    headers = wanted(
        kind="bytes", size=9_000, pieces=3, wait=0.05, chunked=chunked, die_after=6_000, reset=reset
    )
    with pytest.raises((OSError, EOFError)):
        asyncio.run(client.request(closed.stack.port, "POST", CHAT, headers, PROMPT))
    (ended,) = closed.endings()
    assert (ended.outcome, ended.status) == ("failed", "200")


@pytest.mark.parametrize("mode", MODES)
def test_the_first_answer_of_all_that_breaks_off_is_told_as_the_engines_doing(
    tmp_path: Path, mode: Any
) -> None:
    diary = Diary(tmp_path)
    headers = wanted(kind="bytes", size=9_000, pieces=3, wait=0.05, die_after=6_000)
    with Stack(tmp_path, mode=mode, serve=diary.serve) as stack:
        assert not stack.state()["access_logs"]  # Envoy opens its log with its first entry
        with pytest.raises((OSError, EOFError)):
            asyncio.run(http1.request(stack.port, "POST", CHAT, headers, PROMPT))
        stack.wait_idle()
        (ended,) = diary.read()
    assert (ended.outcome, ended.status) == ("failed", "200")


def test_a_model_server_that_is_killed_cuts_its_own_answers_only(closed: Gateway) -> None:
    stack = closed.stack
    results = asyncio.run(while_answering(stack, stack.backends[1].kill))
    assert {r.backend for r in results if r.intact} == {"backend-0", "backend-2"}
    counted = summary(results)
    assert set(counted) == {WHOLE, CUT}
    outcomes = [ended.outcome for ended in closed.endings()]
    assert outcomes.count("completed") == counted[WHOLE]
    assert outcomes.count("failed") == counted[CUT]
    at_first = {ended.picked for ended in closed.endings() if ended.outcome != "completed"}
    assert at_first == {stack.addresses[1]}


def test_a_model_server_that_refuses_connections_is_left_out_soon(closed: Gateway) -> None:
    stack = closed.stack
    stack.backends[0].kill()
    first = summary(asyncio.run(quick(stack, 30)))
    assert first[(503, False)] > 0
    assert set(first) == {WHOLE, (503, False)}
    refused = [ended for ended in closed.endings() if ended.outcome == "failed"]
    assert len(refused) == first[(503, False)]
    assert {(ended.picked, ended.status) for ended in refused} == {(stack.addresses[0], "503")}
    eventually(lambda: not stack.pool()[0]["reachable"], what="the picker noticing")
    assert summary(asyncio.run(quick(stack, 30))) == {WHOLE: 30}


def test_a_gateway_with_retries_hides_a_model_server_that_refuses(opened: Gateway) -> None:
    stack = opened.stack
    dead = stack.addresses[0]
    for _ in range(ROUNDS):
        opened.begin()
        stack.backends[0].kill()
        results = asyncio.run(quick(stack, 60))
        assert summary(results) == {WHOLE: 60}
        assert {result.backend for result in results} == {"backend-1", "backend-2"}
        endings = opened.endings()
        assert [ended.outcome for ended in endings] == ["completed"] * 60
        if any(ended.picked == dead for ended in endings):
            break
        stack.start_backend(0)  # the picker knew before it was asked: nothing was tried again
        serving(stack)
        stack.wait_idle()
    assert any(ended.picked == dead for ended in endings)
    places = dict(zip(("backend-0", "backend-1", "backend-2"), stack.addresses, strict=True))
    named = sorted(places[result.backend] for result in results)
    assert sorted(ended.served for ended in endings) == named


class RetriesResets(Stack):
    """A gateway whose owner has it try again elsewhere what a model server hung up on."""

    def _envoy(self) -> list[str]:
        command, bootstrap = super()._envoy(), self.folder / "envoy.yaml"
        before = bootstrap.read_text()
        after = re.sub("retryOn: .*", "retryOn: reset", before)
        assert after != before
        bootstrap.write_text(after)
        return command


@pytest.mark.parametrize("mode", MODES)
def test_what_one_model_server_hung_up_on_and_another_answered_is_told_as_answered_by_that(
    tmp_path: Path, mode: Any
) -> None:
    diary, routing = Diary(tmp_path), {"routing": "override-host"}
    headers = wanted(kind="bytes", size=900, dropped_by="backend-0", reset=True)
    with RetriesResets(tmp_path, mode=mode, serve=diary.serve, gateway=routing) as stack:
        for _ in range(PICKED_BY_CHANCE):
            answer = asyncio.run(http1.request(stack.port, "POST", CHAT, headers, PROMPT))
            assert (answer.status, answer.headers["x-backend"]) == (200, "backend-1")
            stack.wait_idle()
            *_, ended = diary.read()
            assert (ended.outcome, ended.status) == ("completed", "200")
            assert ended.served == stack.addresses[1]
            if ended.picked == stack.addresses[0]:
                break
        assert ended.picked == stack.addresses[0]
        assert stack.state()["reaped"] == 0


def test_without_any_model_server_every_request_fails_clearly(closed: Gateway) -> None:
    for backend in closed.stack.backends:
        backend.kill()
    results = asyncio.run(quick(closed.stack))
    assert summary(results) == {(503, False): 20}
    assert max(result.seconds for result in results) < SOON_SECONDS
    assert [ended.outcome for ended in closed.endings()] == ["failed"] * 20


@pytest.mark.parametrize("client", [http1, http2], ids=["http1", "http2"])
def test_a_client_that_loses_patience_with_a_model_server_frees_it(
    closed: Gateway, client: Any
) -> None:
    stack = closed.stack

    async def run() -> None:
        async with asyncio.timeout(0.5):
            await client.request(stack.port, "POST", CHAT, wanted(kind="hang"), PROMPT)

    with pytest.raises(TimeoutError):
        asyncio.run(run())
    assert [ended.outcome for ended in closed.endings()] == ["abandoned"]
    eventually(lambda: not sum(stack.counts(n).running for n in range(BACKENDS)))
    assert asyncio.run(http1.request(stack.port, "POST", CHAT, QUICK, PROMPT)).status == 200
