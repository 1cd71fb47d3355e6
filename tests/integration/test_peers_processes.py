"""``epp serve`` with other pickers: what its flags do, as seen on its admin port. Out: gateways."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from epp.local.fleet import free_port
from tests.support.serving import Serving, answer, ask, complete, eventually, serving

CONFIG = "plugins: [{type: approx-prefix-cache-producer}, {type: prefix-cache-scorer}]"


def flags(own: int, *ports: int) -> tuple[str, ...]:
    peers = ",".join(f"127.0.0.1:{port}" for port in ports)
    return (f"--peers={peers}", f"--peers-port={own}", f"--config-text={CONFIG}")


@contextlib.asynccontextmanager
async def two(folder: Path) -> AsyncIterator[tuple[Serving, Serving]]:
    ports = [free_port() for _ in range(2)]
    for name in ("one", "other"):
        (folder / name).mkdir()
    async with (
        serving(folder / "one", *flags(ports[0], *ports)) as one,
        serving(folder / "other", *flags(ports[1], *ports)) as other,
    ):
        await heard(one)
        await heard(other)
        yield one, other


async def figure(picker: Serving, name: str) -> float | None:
    return await picker.metric(f'epp_peers{name}{{name="default"}}')


async def heard(picker: Serving, number: int = 1) -> None:
    """Wait until it hears so many others."""

    async def hears() -> bool:
        return await figure(picker, "") == number

    await eventually(hears, bound=20.0)


async def is_figure(picker: Serving, name: str, wanted: float) -> None:
    async def is_so() -> bool:
        return await figure(picker, name) == wanted

    await eventually(is_so)


def test_what_one_process_sends_the_other_knows_and_forgets_with_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with two(tmp_path) as (one, other):
            async with one.gateway.stream() as stream:
                await ask(stream, "hello " * 500)
                await is_figure(other, "_requests", 1)
                assert await other.blocks() == await one.blocks() > 0
                own = [each["in_flight_requests"] for each in await other.json("/debug/pool")]
                assert sum(own) == 0  # its own, so that those of all pickers add up
                await answer(stream)
            await is_figure(other, "_requests", 0)
            await is_figure(other, "_heard_events_total", await figure(one, "_told_events_total"))
            assert await figure(one, "_followers") == 1
            lags = [x for x in (await other.get("/metrics"))[1].splitlines() if "lag_seconds{" in x]
            assert len(lags) == 1

            async with one.gateway.stream() as stream:
                await ask(stream)
                await is_figure(other, "_requests", 1)
                one.signal(signal.SIGKILL)
                await is_figure(other, "_requests", 0)
            await heard(other, 0)
            assert (await other.get("/readyz"))[0] == 200
            await complete(other.gateway)

    asyncio.run(main())


def test_one_that_starts_again_is_told_all_and_each_coming_and_going_is_one_line(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        ports = [free_port() for _ in range(2)]
        for name in ("one", "other", "again"):
            (tmp_path / name).mkdir()
        async with serving(tmp_path / "one", *flags(ports[0], *ports)) as one:
            async with serving(tmp_path / "other", *flags(ports[1], *ports)) as other:
                await heard(one)
                await heard(other)
                await complete(one.gateway, "hello " * 500)

                async def known() -> bool:
                    return await other.blocks() == await one.blocks() > 0

                await eventually(known)
            await heard(one, 0)
            async with serving(tmp_path / "again", *flags(ports[1], *ports)) as again:
                await heard(one)

                async def warm() -> bool:
                    return await again.blocks() == await one.blocks()

                await eventually(warm)
                page: dict[str, Any] = (await again.state())["peers"]
                (met,) = page["pools"]["default"]["following"].values()
                assert met["instance"] == (await one.state())["peers"]["instance"]
                assert page["instance"] != met["instance"]
            lines = [line for line in one.log().splitlines() if "peer" in line and "127" in line]
            assert sum("is heard" in line for line in lines) == 2
            assert len(lines) <= 6, lines

    asyncio.run(main())


def test_without_other_pickers_nothing_of_it_is_there(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as picker:
            assert "peers" not in await picker.state()
            assert "epp_peers" not in (await picker.get("/metrics"))[1]
            assert "grpc/_cython" not in Path(f"/proc/{picker.child.pid}/maps").read_text()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("peers", "words"),
    [
        ("127.0.0.1:1", "peer at 127.0.0.1:1 is not heard"),
        ("nobody.invalid:9005", "the name nobody.invalid cannot be looked up"),
    ],
)
def test_others_that_are_not_there_change_nothing_and_are_told_of_once(
    tmp_path: Path, peers: str, words: str
) -> None:
    async def main() -> None:
        async with serving(tmp_path, f"--peers={peers}", "--peers-port=0") as picker:
            assert (await picker.get("/readyz"))[0] == 200
            await complete(picker.gateway)
            assert await figure(picker, "") == 0

            async def said() -> bool:
                return words in picker.log()

            await eventually(said)
            await complete(picker.gateway)
            assert picker.log().count(words) == 1

    asyncio.run(main())
