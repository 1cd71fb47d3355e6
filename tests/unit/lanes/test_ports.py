"""Ports of pools: opened, closed, tried again, and drained together with the shared one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from epp.errors import ConfigError
from epp.lanes.ports import Ports
from tests.support.pages import until

SHARED = 9002


class Server:
    """Notes what is asked of it."""

    def __init__(self, port: int, said: list[str]) -> None:
        self.port = port
        self._said = said

    async def start(self) -> None:
        self._said.append(f"start {self.port}")

    async def leave(self, grace: float) -> None:
        self._said.append(f"leave {self.port} {grace}")

    async def drain(self, grace: float, *, notice: float) -> None:
        self._said.append(f"drain {self.port} {grace} {notice}")

    async def stop(self) -> None:
        self._said.append(f"stop {self.port}")


Script = Callable[[Ports, list[str], set[int]], Coroutine[Any, Any, None]]


def with_ports(wanted: dict[int, str], script: Script, *, taken: int = 0) -> list[str]:
    """Run ``script`` with the ports, what is said, and the ports that others have; return it."""
    said: list[str] = []
    others = {taken}

    def build(port: int) -> Any:
        if port in others:
            raise ConfigError(f"cannot listen on {port}")
        return Server(port, said)

    async def main() -> None:
        shared: Any = Server(SHARED, said)
        ports = Ports(shared, lambda: wanted, build, 3.0, retry_seconds=0.05)
        await ports.start()
        await script(ports, said, others)
        await ports.stop()

    asyncio.run(main())
    return said


def test_a_port_opens_for_a_pool_and_closes_when_no_pool_has_it() -> None:
    wanted = {9012: "chat"}

    async def script(_ports: Ports, said: list[str], _taken: set[int]) -> None:
        await until(lambda: "start 9012" in said)
        wanted.clear()
        await until(lambda: "leave 9012 3.0" in said)

    said = with_ports(wanted, script)
    assert said == ["start 9002", "start 9012", "leave 9012 3.0", "stop 9002"]


def test_the_shared_port_is_no_pools_own() -> None:
    wanted = {SHARED: "chat"}

    async def script(_ports: Ports, said: list[str], _taken: set[int]) -> None:
        wanted[9013] = "code"
        await until(lambda: "start 9013" in said)

    assert with_ports(wanted, script).count("start 9002") == 1


def test_a_port_that_another_process_has_is_tried_again_and_harms_no_other_pool() -> None:
    wanted = {9012: "chat", 9013: "code"}

    async def script(_ports: Ports, said: list[str], taken: set[int]) -> None:
        await until(lambda: "start 9013" in said)
        assert "start 9012" not in said
        taken.clear()
        await until(lambda: "start 9012" in said)

    said = with_ports(wanted, script, taken=9012)
    assert said[:3] == ["start 9002", "start 9013", "start 9012"]


def test_all_ports_drain_together_and_none_opens_any_more() -> None:
    wanted = {9012: "chat"}

    async def script(ports: Ports, said: list[str], _taken: set[int]) -> None:
        await until(lambda: "start 9012" in said)
        await ports.drain(2.0, notice=0.5)
        wanted[9013] = "code"
        await asyncio.sleep(0.3)  # three looks
        assert "start 9013" not in said

    said = with_ports(wanted, script)
    assert said[2:] == ["drain 9002 2.0 0.5", "drain 9012 2.0 0.5", "stop 9002", "stop 9012"]
