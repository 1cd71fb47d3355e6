"""One gateway in lean mode that spreads its requests over two pickers, and has its log at one."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from epp.local.fleet import free_port
from tests.support import http1
from tests.support.backend import wanted
from tests.support.crowd import CHAT
from tests.support.process import Process, eventually
from tests.support.stack import READY_SECONDS, Stack, _get, metrics_of

pytestmark = pytest.mark.e2e

REQUESTS = 200
AT_ONCE = 16
LEAVING = 800
USAGE = b'{"usage":{"prompt_tokens":%d,"completion_tokens":7,"total_tokens":907}}'
PLAIN = {"content-type": "application/json"}
KINDS = (
    ("completed", 200, "json"),
    ("failed", 503, "json"),
    ("failed", 200, "bytes"),
    ("abandoned", None, "hang"),
)


class Pickers:
    """A stack, and a second picker beside its own behind the same Envoy."""

    def __init__(self, folder: Path) -> None:
        peer_ports = [free_port() for _ in range(2)]
        peers = ",".join(f"127.0.0.1:{port}" for port in peer_ports)
        told = (f"--peers={peers}", f"--receipts={REQUESTS}")
        gateway = {"lean_usage": True, "lean_ttft": True}
        self.stack = Stack(
            folder, gateway=gateway, serve=(*told, f"--peers-port={peer_ports[0]}")
        )  # fmt: skip
        first = self.stack.ports
        ports = {each: free_port() for each in (first.grpc, first.health, first.admin)}
        ports[peer_ports[0]] = peer_ports[1]
        self.admins = (first.admin, ports[first.admin])
        command = [_own(part, ports) for part in self.stack.picker.command]
        self.picker = Process("second-picker", command, folder)
        _spread(folder / "envoy.yaml", first.grpc, ports[first.grpc])
        envoy = self.stack.envoy.command
        envoy[envoy.index("--concurrency") + 1] = "1"  # one worker has one log

    @contextmanager
    def running(self) -> Iterator[None]:
        try:
            self.picker.start()
            self.picker.first_line()
            with self.stack:
                for admin in self.admins:
                    eventually(lambda admin=admin: self.figure(admin, "") == 1, READY_SECONDS)
                yield
        finally:
            self.picker.kill()

    def figure(self, admin: int, name: str) -> float | None:
        page = metrics_of(_get(admin, "/metrics")[1].decode())
        return page.get(f'epp_peers{name}{{name="default"}}')

    def state(self, admin: int) -> dict[str, Any]:
        return dict(json.loads(_get(admin, "/debug/state")[1]))

    def at_rest(self, admin: int) -> bool:
        """Whether a picker holds nothing."""
        names = ("in_flight_requests", "in_flight_tokens")
        pool = json.loads(_get(admin, "/debug/pool")[1])
        state = self.state(admin)
        booked = [endpoint[name] for endpoint in pool for name in names]
        return not any((*booked, state["open_exchanges"], state["streams"]))

    def ended(self, admin: int) -> dict[str, dict[str, Any]]:
        """How each request ended, by its id."""
        told = json.loads(_get(admin, f"/debug/decisions?limit={REQUESTS}")[1])
        return {each["request_id"]: each["ended"] for each in told}


def _own(part: str, ports: dict[int, int]) -> str:
    flag, equals, value = part.partition("=")
    if flag.endswith("-port") and equals:
        return f"{flag}={ports[int(value)]}"
    return part


def _spread(bootstrap: Path, port: int, other: int) -> None:
    """Give the picker's cluster a second endpoint."""
    lines = bootstrap.read_text().splitlines()
    at = lines.index(f"                portValue: {port}")
    begun = max(i for i in range(at) if lines[i].strip() == "- endpoint:")
    lines[at + 1 : at + 1] = [*lines[begun:at], lines[at].replace(str(port), str(other))]
    bootstrap.write_text("\n".join(lines) + "\n")


async def ask(port: int, number: int) -> None:
    _, status, how = KINDS[number % len(KINDS)]
    headers = {"x-request-id": f"r-{number}"}
    if how == "json":
        text = (USAGE % number).decode()
        headers |= wanted(text=text, status=status, headers=PLAIN)
    elif how == "bytes":  # breaks off
        headers |= wanted(kind="bytes", size=900, pieces=3, wait=0.02, chunked=True, die_after=600)
    else:
        headers |= wanted(kind="hang")
    with suppress(OSError, EOFError, TimeoutError):
        async with asyncio.timeout(1.0 if how == "hang" else 20.0):
            await http1.request(port, "POST", CHAT, headers, b'{"model":"m","prompt":"a"}')


async def crowd(port: int, numbers: range) -> None:
    turns = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> None:
        async with turns:
            await ask(port, number)

    await asyncio.gather(*map(one, numbers))


def test_each_request_ends_by_its_entry_at_whichever_picker_it_was_and_a_lost_one_leaves_nothing(
    tmp_path: Path,
) -> None:
    both = Pickers(tmp_path)
    with both.running():
        asyncio.run(ask(both.stack.port, 0))  # Envoy opens its log
        logs = [lambda each=each: both.state(each)["access_logs"] for each in both.admins]
        eventually(lambda: sorted(log() for log in logs) == [0, 1])
        here, there = both.admins if logs[0]() else both.admins[::-1]
        asyncio.run(crowd(both.stack.port, range(1, REQUESTS)))
        for admin in both.admins:
            eventually(lambda admin=admin: both.at_rest(admin))
        ended = [both.ended(admin) for admin in both.admins]
        assert sorted(ended[0] | ended[1]) == sorted(f"r-{i}" for i in range(REQUESTS))
        assert min(map(len, ended)) > REQUESTS / 4
        for name, end in (ended[0] | ended[1]).items():
            number = int(name[2:])
            outcome, status, how = KINDS[number % len(KINDS)]
            assert (end["outcome"], end["status"]) == (outcome, status), name
            assert end["served_as_picked"]
            if how == "json" and status == 200:
                assert (end["prompt_tokens"], end["completion_tokens"]) == (number, 7)
                assert end["ttft_seconds"] is not None
        states = [both.state(admin) for admin in both.admins]
        assert [each["reaped"] for each in states] == [0, 0]
        assert [each["unmatched_log_entries"] for each in states] == [0, 0]
        heard = both.figure(there, "_heard_entries_total")
        assert heard == both.figure(here, "_told_entries_total")
        assert heard == len(both.ended(there))

        asyncio.run(leaving(both, there))

        async def hanging() -> None:
            """The picker with the log dies, with requests under way at either."""
            tasks = [asyncio.create_task(hang(both.stack.port)) for _ in range(8)]
            await asyncio.to_thread(
                eventually, lambda: sum(both.stack.counts(i).running for i in range(2)) == 8
            )
            (both.stack.picker if here == both.admins[0] else both.picker).kill()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run(hanging())
        eventually(lambda: both.at_rest(there), 20.0)


async def leaving(both: Pickers, there: int) -> None:
    """Clients leave about when they are routed, while the engines are busy with others."""
    port, draw = both.stack.port, random.Random(1)
    busy = [asyncio.create_task(hang(port)) for _ in range(4)]
    turns = asyncio.Semaphore(AT_ONCE)

    async def one() -> None:
        async with turns:
            with suppress(OSError, EOFError, TimeoutError):
                async with asyncio.timeout(draw.random() * 0.04):
                    await hang(port)

    await asyncio.gather(*(one() for _ in range(LEAVING)))
    # The gateway may tell of a few so late that they cannot be told from others of their ids.
    few = len(busy) + LEAVING / 50

    def told() -> bool:
        return both.state(there)["open_exchanges"] <= few

    await asyncio.to_thread(eventually, told, 4.0)
    assert both.state(there)["reaped"] <= LEAVING / 50
    for task in busy:
        task.cancel()
    await asyncio.gather(*busy, return_exceptions=True)
    for admin in both.admins:
        await asyncio.to_thread(eventually, lambda admin=admin: both.at_rest(admin), 20.0)


async def hang(port: int) -> None:
    await http1.request(port, "POST", CHAT, wanted(kind="hang"), b'{"model":"m","prompt":"a"}')
