"""When a pool of many is opened: once it can be, and never at the cost of another."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import msgspec

from epp.clock import ManualClock
from epp.collect.kube.configs import Config
from epp.collect.kube.pools import Pools
from epp.collect.kube.wanted import Wanted
from epp.collect.parse.inference_pools import PoolSpec
from epp.pool import Pool
from epp.rules import RuleBook
from tests.support.clusters import CONFIG_MAPS, PODS, POOLS, QUICK, Lines
from tests.support.kube import FakeKube
from tests.support.pages import running, until
from tests.support.pods import config_map, inference_pool, pod


class Homes:
    """Keeps pools; one that is called ``broken`` cannot be kept."""

    def __init__(self) -> None:
        self.pools: dict[str, Pool] = {}
        self.configs: dict[str, Config] = {}

    def open(self, spec: PoolSpec, config: Config) -> Any:
        if spec.name == "broken":
            raise RuntimeError("a bug that only this pool's plugins have")
        self.configs[spec.name] = config
        self.pools[spec.name] = Pool(spec.name)
        return SimpleNamespace(pool=self.pools[spec.name], book=RuleBook())

    def change(self, spec: PoolSpec, config: Config) -> None:
        self.configs[spec.name] = config

    def close(self, name: str) -> None:
        del self.pools[name], self.configs[name]

    def hosts(self, name: str) -> list[str]:
        return [each.host for each in self.pools[name].snapshot()] if name in self.pools else []


@contextlib.asynccontextmanager
async def following(kube: FakeKube, clock: ManualClock) -> AsyncIterator[tuple[Pools, Homes]]:
    homes = Homes()
    pools = Pools(
        kube.access(),
        Wanted("default"),
        names=frozenset(),
        homes=homes,
        report=lambda _: None,
        habits=msgspec.structs.replace(QUICK, clock=clock),
    )
    async with running(pools.run()):
        yield pools, homes


def test_a_pool_waits_for_its_configuration_but_not_for_ever_and_others_do_not_wait() -> None:
    async def main() -> None:
        async with FakeKube() as kube:
            clock = ManualClock()
            kube.put(POOLS, inference_pool("chat", config="slow"))
            kube.put(POOLS, inference_pool("code"))
            kube.put(PODS, pod("a"))
            kube.refuse(503, times=10_000, path=CONFIG_MAPS)
            async with following(kube, clock) as (pools, homes):
                await until(lambda: homes.hosts("code") == ["10.0.0.1"])
                assert "chat" not in homes.pools and not pools.synced
                clock.advance(5.0)
                await until(lambda: homes.hosts("chat") == ["10.0.0.1"])
                assert homes.configs["chat"].problem == "ConfigMap slow cannot be read yet"
                assert homes.configs["chat"].text is None
                await until(lambda: pools.synced)
                kube.faults.refusals.clear()
                kube.put(CONFIG_MAPS, config_map("slow", x="text"))
                await until(lambda: homes.configs["chat"].text == "text")

    asyncio.run(main())


def test_a_configuration_that_may_not_be_read_is_said_with_the_right_that_lacks() -> None:
    async def main() -> None:
        async with FakeKube() as kube:
            kube.put(POOLS, inference_pool("chat", config="secret"))
            kube.refuse(403, times=10_000, path=CONFIG_MAPS)
            async with following(kube, ManualClock()) as (_, homes):
                await until(lambda: "chat" in homes.configs)
                said = homes.configs["chat"].problem
                assert said.startswith("ConfigMap secret: its role needs list and watch on it")

    asyncio.run(main())


def test_a_pool_that_cannot_be_opened_harms_no_other() -> None:
    async def main() -> None:
        async with FakeKube() as kube:
            kube.put(POOLS, inference_pool("broken"))
            kube.put(POOLS, inference_pool("whole"))
            kube.put(PODS, pod("a"))
            with Lines("epp.collect.kube.pools") as lines:
                async with following(kube, ManualClock()) as (pools, homes):
                    await until(lambda: pools.synced)
                    assert homes.hosts("whole") == ["10.0.0.1"]
                    kube.put(PODS, pod("b", "10.0.0.2"))
                    await until(lambda: "10.0.0.2" in homes.hosts("whole"))
            assert len(lines.about("broken cannot be served")) == 1

    asyncio.run(main())


def test_while_the_server_is_away_every_pool_stays_as_it_was() -> None:
    async def main() -> None:
        async with FakeKube() as kube:
            kube.put(POOLS, inference_pool("chat"))
            kube.put(PODS, pod("a"))
            async with following(kube, ManualClock()) as (pools, homes):
                await until(lambda: homes.hosts("chat") == ["10.0.0.1"])
                await kube.stop()
                await asyncio.sleep(0.5)  # five looks
                assert homes.hosts("chat") == ["10.0.0.1"] and pools.synced
                kube.put(POOLS, inference_pool("late"))
                await kube.start()
                await until(lambda: homes.hosts("late") == ["10.0.0.1"])
                assert homes.hosts("chat") == ["10.0.0.1"]

    asyncio.run(main())
