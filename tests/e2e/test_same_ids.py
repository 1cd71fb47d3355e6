"""Request ids that come again, as of clients that ask anew with the id they have."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support import http1
from tests.support.backend import wanted
from tests.support.crowd import CHAT
from tests.support.diary import Diary
from tests.support.leaving import soon
from tests.support.process import eventually
from tests.support.stack import Stack

pytestmark = pytest.mark.e2e

ID = {"x-request-id": "again", "content-type": "application/json"}
PROMPT = b'{"model":"m","prompt":"a"}'
BROKEN = b'{"model":'
SLOW = wanted(kind="bytes", size=9_000, pieces=3, wait=0.3, chunked=True)
DYING = wanted(kind="bytes", size=900, pieces=3, wait=0.05, chunked=True, die_after=600)
LATER = wanted(kind="bytes", size=900, pieces=3, wait=1.0, chunked=True, die_after=600)
LONG = wanted(kind="bytes", size=900, pieces=3, wait=2.0, chunked=True)
TAKEN_OVER = "                  - epp\n"  #: the namespace of names
LATE = {"log_flush_interval": 1.0}  #: so that the next request is under way before an entry comes


@pytest.mark.parametrize("mode", ["lean", "stock"])
def test_a_refusal_does_not_end_the_request_that_comes_after_it_with_its_id(
    tmp_path: Path, mode: Any
) -> None:
    diary = Diary(tmp_path)
    with Stack(tmp_path, mode=mode, serve=diary.serve) as stack:
        asyncio.run(http1.request(stack.port, "POST", CHAT, wanted(kind="drop"), PROMPT))
        eventually(lambda: stack.state()["access_logs"], what="Envoy's access log")
        refused = asyncio.run(http1.request(stack.port, "POST", CHAT, {**ID, **SLOW}, BROKEN))
        answer = asyncio.run(http1.request(stack.port, "POST", CHAT, {**ID, **SLOW}, PROMPT))
        assert (refused.status, answer.status) == (400, 200)
        stack.wait_idle()
        first, *others = diary.read()
        state = stack.state()
    assert first.status == "503"
    assert [(ended.outcome, ended.status) for ended in others] == [("completed", "200")]
    assert (state["reaped"], state["unmatched_log_entries"]) == (0, 0)


@pytest.mark.parametrize("mode", ["lean", "stock"])
def test_a_failure_does_not_end_the_request_that_comes_after_it_with_its_id(
    tmp_path: Path, mode: Any
) -> None:
    diary = Diary(tmp_path)
    with Stack(tmp_path, mode=mode, backends=1, serve=diary.serve, gateway=LATE) as stack:

        def told() -> bool:
            return bool(stack.state()["access_logs"])

        asyncio.run(fail_then_leave(stack.port, told))
        stack.wait_idle()
        ended = {each.model: (each.outcome, each.status) for each in diary.read()}
        state = stack.state()
    assert ended == {"first": ("failed", "503"), "second": ("abandoned", "-")}
    assert state["reaped"] == 0


async def fail_then_leave(port: int, told: Callable[[], bool]) -> None:
    """Have a request fail, send one more by its id, and leave it once the failure was told."""
    headers = {**ID, **wanted(kind="drop")}
    answer = await http1.request(port, "POST", CHAT, headers, prompt("first"))
    assert answer.status == 503
    hanging = prompt("second")
    head = {**ID, **wanted(kind="hang"), "content-length": str(len(hanging))}
    async with http1.Connection(port) as connection:
        await connection.send_head("POST", CHAT, head)
        await connection.send(hanging)
        await soon(told)()


@pytest.mark.parametrize("mode", ["lean", "stock"])
def test_of_two_requests_of_one_id_on_one_endpoint_each_is_told_its_own_end(
    tmp_path: Path, mode: Any
) -> None:
    diary = Diary(tmp_path)
    with Stack(tmp_path, mode=mode, backends=1, serve=diary.serve) as stack:

        async def both() -> None:
            slow = asyncio.create_task(ask(stack.port, SLOW, "slow"))
            await soon(lambda: stack.counts(0).running)()
            await ask(stack.port, DYING, "broken")
            await slow

        asyncio.run(both())
        stack.wait_idle()
        ended = [(each.model, each.outcome, each.status) for each in diary.read()]
    assert ended == [("broken", "failed", "200"), ("slow", "completed", "200")]


@pytest.mark.parametrize("mode", ["lean", "stock"])
def test_a_picker_that_hears_of_ends_and_entries_all_at_once_tells_each_its_own(
    tmp_path: Path, mode: Any
) -> None:
    diary = Diary(tmp_path)
    with Stack(tmp_path, mode=mode, backends=1, serve=diary.serve) as stack:

        async def several() -> None:
            whole = asyncio.create_task(ask(stack.port, LONG, "whole"))
            await soon(lambda: stack.counts(0).running)()
            broken = [asyncio.create_task(ask(stack.port, LATER, "broken")) for _ in range(5)]
            await soon(lambda: stack.counts(0).requests == 1 + len(broken))()
            stack.picker.pause()
            try:
                await soon(lambda: written(stack) >= len(broken))()
            finally:
                stack.picker.resume()
            await asyncio.gather(whole, *broken)

        asyncio.run(several())
        stack.wait_idle()
        told = Counter((each.model, each.outcome, each.status) for each in diary.read())
        state = stack.state()
    assert told == {("whole", "completed", "200"): 1, ("broken", "failed", "200"): 5}
    assert (state["reaped"], state["unmatched_log_entries"]) == (0, 0)


def written(stack: Stack) -> int:
    """How many log entries Envoy has sent."""
    name = "access_logs.grpc_access_log.logs_written"
    return stack.envoy_stats(name).get(name, 0)


@pytest.mark.parametrize("mode", ["lean", "stock"])
def test_a_gateway_that_loses_names_tells_ends_by_id(tmp_path: Path, mode: Any) -> None:
    diary = Diary(tmp_path)
    stack = Stack(tmp_path, mode=mode, backends=1, serve=diary.serve)
    bootstrap = tmp_path / "envoy.yaml"
    usual = bootstrap.read_text()
    assert usual.count(TAKEN_OVER) == 1
    bootstrap.write_text(usual.replace(TAKEN_OVER, ""))

    async def several() -> None:
        await asyncio.gather(*(ask(stack.port, SLOW, "whole") for _ in range(3)))
        for _ in range(3):
            await ask(stack.port, DYING, "broken")

    with stack:
        asyncio.run(several())
        stack.wait_idle()
        told = Counter((each.model, each.outcome, each.status) for each in diary.read())
        state = stack.state()
    assert told == {("whole", "completed", "200"): 3, ("broken", "failed", "200"): 3}
    assert (state["reaped"], state["unmatched_log_entries"]) == (0, 0)


async def ask(port: int, answer: dict[str, str], model: str) -> None:
    """Ask by the one id; the answer may break off."""
    with suppress(OSError, EOFError):
        await http1.request(port, "POST", CHAT, {**ID, **answer}, prompt(model))


def prompt(model: str) -> bytes:
    return PROMPT.replace(b'"m"', b'"' + model.encode() + b'"')
