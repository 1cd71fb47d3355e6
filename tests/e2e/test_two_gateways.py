"""Two gateways that ask one picker, each with an access log of its own."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from epp.local.fleet import free_port
from tests.support import http1
from tests.support.backend import wanted
from tests.support.crowd import CHAT
from tests.support.diary import Diary
from tests.support.process import Process
from tests.support.stack import Stack

pytestmark = pytest.mark.e2e

PROMPT = b'{"model":"m","prompt":"a"}'
PAIRS = 100
AT_ONCE = 20
HUNG = 10  #: requests of a gateway that dies
RECONCILED_SECONDS = 20.0


class Second(Process):
    """One more Envoy, configured as that of ``stack``."""

    def __init__(self, stack: Stack) -> None:
        self.port, admin_port = free_port(), free_port()
        usual, own = stack.folder / "envoy.yaml", stack.folder / "second.yaml"
        told = usual.read_text().replace(f": {stack.port}\n", f": {self.port}\n")
        own.write_text(told.replace(f": {stack.admin_port}\n", f": {admin_port}\n"))
        command = [str(own) if part == str(usual) else part for part in stack.envoy.command]
        super().__init__("second", command, stack.folder)


async def ask(port: int, name: str, headers: dict[str, str]) -> None:
    """Send a request; its answer may break off."""
    headers = {**headers, "x-request-id": name}
    with suppress(OSError, EOFError):
        await http1.request(port, "POST", CHAT, headers, PROMPT)


async def listening(port: int) -> None:
    """Wait until somebody takes connections."""
    async with asyncio.timeout(20.0):
        while True:
            with suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                return
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("mode", ["lean", "stock"])
def test_ids_that_both_use_at_once_are_told_apart_and_one_that_dies_leaves_nothing(
    tmp_path: Path, mode: Any
) -> None:
    diary = Diary(tmp_path)
    whole = wanted(kind="bytes", size=900, pieces=3, wait=0.02, chunked=True)
    dying = wanted(kind="bytes", size=900, pieces=3, wait=0.05, chunked=True, die_after=600)
    with Stack(tmp_path, mode=mode, serve=diary.serve) as stack:
        second = Second(stack)
        second.start()
        try:
            asyncio.run(pairs(stack.port, second.port, whole, dying))
            stack.wait_idle()
            told = Counter((ended.outcome, ended.status) for ended in diary.read())
            assert told == {("completed", "200"): PAIRS, ("failed", "200"): PAIRS}
            state = stack.state()
            assert (state["reaped"], state["unmatched_log_entries"]) == (0, 0)
            asyncio.run(left_hanging(stack, second))
        finally:
            second.kill()
        stack.wait_idle(RECONCILED_SECONDS)
        assert len(diary.read()) == 2 * PAIRS + HUNG


async def pairs(one: int, other: int, whole: dict[str, str], dying: dict[str, str]) -> None:
    """Send pairs of one id, one of each through its own gateway."""
    await listening(other)
    turns = asyncio.Semaphore(AT_ONCE)

    async def pair(number: int) -> None:
        async with turns:
            both = ask(one, f"r-{number}", whole), ask(other, f"r-{number}", dying)
            await asyncio.gather(*both)

    await asyncio.gather(*map(pair, range(PAIRS)))


async def left_hanging(stack: Stack, gateway: Second) -> None:
    """Kill ``gateway`` while its requests are under way."""
    asked = (ask(gateway.port, f"h-{i}", wanted(kind="hang")) for i in range(HUNG))
    hanging = [asyncio.create_task(each) for each in asked]
    async with asyncio.timeout(20.0):
        while sum(stack.counts(number).running for number in range(2)) < HUNG:
            await asyncio.sleep(0.05)
    gateway.kill()
    await asyncio.gather(*hanging)
