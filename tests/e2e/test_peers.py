"""Two pickers behind a gateway each, which tell each other: nothing is left booked at either."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import pytest

from epp.local.fleet import free_port
from tests.support import http1
from tests.support.backend import wanted
from tests.support.crowd import CHAT
from tests.support.process import Process, eventually
from tests.support.stack import READY_SECONDS, Stack, _get, metrics_of

pytestmark = pytest.mark.e2e

CONFIG = """
plugins:
- type: approx-prefix-cache-producer
- type: prefix-cache-scorer
- type: in-flight-load-scorer
"""
REQUESTS = 120  #: through each gateway
AT_ONCE = 16
KINDS = (
    wanted(kind="bytes", size=900, pieces=3, wait=0.01, chunked=True),
    wanted(kind="bytes", size=900, pieces=3, wait=0.02, chunked=True, die_after=600),
    wanted(kind="echo"),
)


class Pickers:
    """A stack, and a second picker of the same engines behind a second Envoy."""

    def __init__(self, folder: Path, mode: Any) -> None:
        self.peer_ports = [free_port() for _ in range(2)]
        peers = ",".join(f"127.0.0.1:{port}" for port in self.peer_ports)
        told = (f"--peers={peers}", f"--config-text={CONFIG}")
        self.stack = Stack(
            folder, mode=mode, serve=(*told, f"--peers-port={self.peer_ports[0]}")
        )  # fmt: skip
        self.port = free_port()  #: the second gateway's
        ports = {self.stack.ports.grpc: free_port(), self.stack.ports.health: free_port(),
                 self.stack.ports.admin: free_port(), self.peer_ports[0]: self.peer_ports[1],
                 self.stack.port: self.port, self.stack.admin_port: free_port()}  # fmt: skip
        self.admin = ports[self.stack.ports.admin]
        command = [_own(part, ports) for part in self.stack.picker.command]
        self.picker = Process("second-picker", command, folder)
        usual, own = folder / "envoy.yaml", folder / "second.yaml"
        text = usual.read_text()
        for port, other in ports.items():
            text = text.replace(f": {port}\n", f": {other}\n")
        own.write_text(text)
        envoy = [str(own) if part == str(usual) else part for part in self.stack.envoy.command]
        self.envoy = Process("second-envoy", envoy, folder)

    def __enter__(self) -> Self:
        self.stack.__enter__()
        try:
            self.picker.start()
            self.picker.first_line()
            self.envoy.start()
            for port in (self.stack.ports.admin, self.admin):
                eventually(lambda port=port: self.figure(port, "") == 1, READY_SECONDS, "a peer")
            eventually(lambda: _get(self.port, "/")[0], READY_SECONDS, "the second Envoy")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.envoy.kill()
        self.picker.kill()
        self.stack.close()

    def own(self, admin: int) -> int:
        """Requests that a picker itself has booked, with their tokens."""
        names = ("in_flight_requests", "in_flight_tokens")
        pool = json.loads(_get(admin, "/debug/pool")[1])
        return sum(endpoint[name] for endpoint in pool for name in names)

    def figure(self, admin: int, name: str) -> float | None:
        page = metrics_of(_get(admin, "/metrics")[1].decode())
        return page.get(f'epp_peers{name}{{name="default"}}')


def _own(part: str, ports: dict[int, int]) -> str:
    flag, equals, value = part.partition("=")
    if flag.endswith("-port") and equals:
        return f"{flag}={ports[int(value)]}"
    return part


async def crowd(port: int, name: str) -> None:
    """Send requests of all kinds; some answers break off, some clients leave."""
    turns = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> None:
        body = b'{"model":"m","stream":true,"prompt":"%b"}' % (b"abcd" * 64 * (number % 9 + 1))
        headers = {**KINDS[number % len(KINDS)], "x-request-id": f"{name}-{number}"}
        async with turns:
            with suppress(OSError, EOFError, TimeoutError):
                async with asyncio.timeout(0.02 if number % 10 == 9 else 20.0):
                    await http1.request(port, "POST", CHAT, headers, body)

    await asyncio.gather(*map(one, range(REQUESTS)))


@pytest.mark.parametrize("mode", ["lean", "stock"])
def test_what_either_sent_is_booked_at_both_and_nothing_is_left(tmp_path: Path, mode: Any) -> None:
    with Pickers(tmp_path, mode) as both:
        admins = (both.stack.ports.admin, both.admin)

        async def traffic() -> None:
            await asyncio.gather(crowd(both.stack.port, "a"), crowd(both.port, "b"))

        asyncio.run(traffic())
        both.stack.wait_idle()
        eventually(lambda: both.own(both.admin) == 0)
        for here, there in (admins, admins[::-1]):
            eventually(lambda here=here: both.figure(here, "_requests") == 0)
            told = both.figure(there, "_told_events_total")
            assert told is not None
            assert told >= 2 * REQUESTS * 0.8  # a client that leaves at once may not be routed
            eventually(
                lambda here=here, told=told: both.figure(here, "_heard_events_total") == told
            )
            assert both.figure(here, "_refused_facts_total") == 0

        async def hanging() -> None:
            """The second picker dies with requests under way."""
            asked = [http1.request(both.port, "POST", CHAT, wanted(kind="hang"), b'{"prompt":"x"}')
                     for _ in range(5)]  # fmt: skip
            tasks = [asyncio.create_task(each) for each in asked]

            def booked() -> bool:
                return both.figure(admins[0], "_requests") == 5

            await asyncio.to_thread(eventually, booked)
            both.picker.kill()
            both.envoy.kill()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run(hanging())
        eventually(lambda: both.figure(admins[0], "_requests") == 0)
        eventually(lambda: both.figure(admins[0], "") == 0)
        assert "unexpected" not in both.stack.picker.tail()
