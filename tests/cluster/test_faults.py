"""The API server fails in the ways that API servers do, and the picker has its pods soon after."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

from tests.support.apiserver.proxy import Proxy
from tests.support.cluster.replicas import Replicas, replicas
from tests.support.relay import Relay

AWAY_SECONDS = 0.5
Fault = Callable[[Proxy], AbstractContextManager[object]]

#: What ends each watch, and what every request is answered with meanwhile.
FAULTS: dict[str, Fault] = {
    "a watch that ends": lambda proxy: nullcontext(proxy.end()),
    "410 within a watch": lambda proxy: nullcontext(proxy.end(410)),
    "a reset": lambda proxy: nullcontext(proxy.cut()),
    "a reset within a line": lambda proxy: nullcontext(proxy.cut(mid_line=True)),
    **{str(status): lambda proxy, status=status: proxy.refusing(status)  # type: ignore[misc]
       for status in (401, 403, 410, 429, 500)},
}  # fmt: skip


async def survives(it: Replicas, proxy: Proxy, fault: Fault, number: int) -> None:
    """During the fault one pod goes and another comes; neither is missed."""
    before, after = f"p-{number}", f"p-{number + 1}"
    with fault(proxy):
        await it.pods.delete(before)
        await it.pods.end(before)
        await it.pods.start(after, f"127.77.0.{number + 2}")
        await asyncio.sleep(AWAY_SECONDS)
        assert await it.picker.ready()
    await it.picker.has([after])


def test_b169_whatever_the_server_answers_no_pod_is_missed(tmp_path: Path) -> None:
    """Field problem B169 (kubernetes-client/python#728): a watch ended, and updates were lost."""

    async def main() -> None:
        async with Proxy() as proxy, replicas(tmp_path, way=proxy.before) as it:
            await it.pods.start("p-0", "127.77.0.1")
            await it.picker.has(["p-0"])
            for number, (name, fault) in enumerate(FAULTS.items()):
                began = asyncio.get_running_loop().time()
                await survives(it, proxy, fault, number)
                took = asyncio.get_running_loop().time() - began
                assert took < AWAY_SECONDS + 10.0, name

    asyncio.run(main())


@pytest.mark.parametrize("gone", ["cut", "refused"])
def test_b160_what_happened_while_the_server_was_away_is_known_soon_after(
    gone: str, tmp_path: Path
) -> None:
    """Field problem B160 (vllm-project/production-stack#1091): a deletion fell into the gap."""

    async def main() -> None:
        with Relay() as relay:
            async with replicas(tmp_path, way=lambda server: server.through(relay)) as it:
                for number in (1, 2, 3):
                    await it.pods.start(f"p-{number}", f"127.77.0.{number}")
                await it.picker.has(["p-1", "p-2", "p-3"])
                target, relay.target = relay.target, 0
                await asyncio.to_thread(relay.cut)
                await it.pods.delete("p-1")
                await it.pods.end("p-1")
                await it.pods.start("p-4", "127.77.0.4")
                if gone == "refused":
                    await asyncio.sleep(1.0)
                    await it.picker.has(["p-1", "p-2", "p-3"])
                    assert await it.picker.ready()
                relay.target = target
                await it.picker.has(["p-2", "p-3", "p-4"])

    asyncio.run(main())
