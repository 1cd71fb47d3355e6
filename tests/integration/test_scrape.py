"""The scraper against real HTTP servers on loopback."""

from __future__ import annotations

import asyncio
import random
import time

import pytest

from epp.clock import SystemClock
from epp.collect.fetch import MAX_PAGE_BYTES, Source
from epp.collect.pace import Pace
from epp.collect.parse.engines import Engines
from epp.collect.scrape import Scraper, ScrapeSettings
from epp.collect.static import StaticEndpoints
from epp.model import EndpointId, Load
from epp.pool import Pool
from tests.support import build
from tests.support.pages import Heard, PageServer, running, servers, until, vllm

PACE = Pace(fast=0.02, idle=0.05, asleep=0.4, timeout=0.3, stale_after=0.5)


def scraper(
    heard: Heard | None = None, *, pace: Pace = PACE, source: Source | None = None
) -> Scraper:
    return Scraper(
        ScrapeSettings(source or Source(), pace),
        Engines(),
        clock=SystemClock(),
        random=random.Random(0),
        reports=heard,
    )


def pool_of(*them: PageServer) -> Pool:
    pool = Pool()
    StaticEndpoints(",".join(each.address for each in them)).load(pool)
    return pool


def load_of(pool: Pool, server: PageServer) -> Load | None:
    endpoint = pool.get(EndpointId(server.address))
    assert endpoint is not None
    return endpoint.load


def reachable(pool: Pool, server: PageServer) -> bool:
    endpoint = pool.get(EndpointId(server.address))
    assert endpoint is not None
    return endpoint.reachable


def test_loads_follow_the_pages() -> None:
    async def main() -> None:
        server = PageServer(vllm(queued=3, running=2, usage=0.5))
        async with servers(server):
            pool = pool_of(server)
            async with running(scraper().run(pool)):
                await until(lambda: load_of(pool, server) is not None)
                load = load_of(pool, server)
                assert load is not None
                assert (load.queued, load.running, load.kv_usage) == (3.0, 2.0, 0.5)
                server.page = vllm(queued=7)
                await until(lambda: (now := load_of(pool, server)) is not None and now.queued == 7)

    asyncio.run(main())


def test_a_new_endpoint_is_scraped_at_once_and_one_that_left_no_more() -> None:
    async def main() -> None:
        first, second = PageServer(), PageServer()
        async with servers(first, second):
            pool = pool_of(first)
            async with running(scraper().run(pool)):
                await until(lambda: load_of(pool, first) is not None)
                pool.put(
                    build.endpoint(second.address, host="127.0.0.1", port=second.port, queued=None)
                )
                await until(lambda: load_of(pool, second) is not None)
                pool.remove(EndpointId(first.address))
                await asyncio.sleep(2 * PACE.idle + 0.1)  # what was under way is over
                asked, others = first.asked, second.asked
                await until(lambda: second.asked >= others + 5)
                assert first.asked == asked

    asyncio.run(main())


def test_a_hung_endpoint_delays_no_other_and_goes_stale() -> None:
    async def main() -> None:
        hung, good = PageServer(), PageServer()
        heard = Heard()
        async with servers(hung, good):
            pool = pool_of(hung, good)
            async with running((one := scraper(heard)).run(pool)):
                await until(lambda: None not in (load_of(pool, hung), load_of(pool, good)))
                hung.hang = True
                while load_of(pool, hung) is not None:
                    load = load_of(pool, good)
                    assert load is not None
                    assert time.monotonic() - load.at < PACE.stale_after
                    await asyncio.sleep(0.01)
                await until(lambda: one.stale == 1)
                assert set(heard.reasons) == {"timeout"}
                assert reachable(pool, hung)
                hung.hang = False
                await until(lambda: load_of(pool, hung) is not None)

    asyncio.run(main())


def test_nothing_listening_makes_an_endpoint_unreachable_until_something_answers() -> None:
    async def main() -> None:
        server = PageServer()
        async with servers(server):
            pool = pool_of(server)
            async with running(scraper().run(pool)):
                await until(lambda: load_of(pool, server) is not None)
                await server.stop()
                await until(lambda: not reachable(pool, server))
                server.status = 404
                await server.start()
                await until(lambda: reachable(pool, server))
                await until(lambda: load_of(pool, server) is None)

    asyncio.run(main())


def test_a_refused_metrics_port_says_nothing_about_the_serving_port() -> None:
    async def main() -> None:
        closed, server = PageServer(), PageServer()
        async with servers(closed, server):
            await closed.stop()
            heard = Heard()
            pool = pool_of(server)
            async with running(scraper(heard, source=Source(port=closed.port)).run(pool)):
                await until(lambda: len(heard.reasons) >= 4)
                assert set(heard.reasons) == {"refused"}
                assert reachable(pool, server)

    asyncio.run(main())


def test_a_restarted_process_is_told_to_those_who_keep_knowledge_of_it() -> None:
    async def main() -> None:
        server = PageServer(vllm(started=100.0))
        async with servers(server):
            pool = pool_of(server)
            forgotten: list[EndpointId] = []
            pool.on_forget(forgotten.append)
            async with running(scraper().run(pool)):
                await until(lambda: server.asked >= 3)
                assert forgotten == []
                server.page = vllm(started=200.0)
                asked = server.asked
                await until(lambda: server.asked >= asked + 4)
                assert forgotten == [server.address]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        pytest.param({"status": 500}, "status", id="error status"),
        pytest.param(
            {"status": 302, "headers": {"Location": "/elsewhere"}}, "status", id="redirect"
        ),
        pytest.param({"page": "x" * (MAX_PAGE_BYTES + 1)}, "too_large", id="too large"),
        pytest.param({"headers": {"Content-Encoding": "gzip"}}, "encoding", id="compressed"),
        pytest.param({"page": "something 1\n"}, "unknown_page", id="another program's page"),
    ],
)
def test_a_page_that_cannot_be_used_is_no_load(change: dict[str, object], reason: str) -> None:
    async def main() -> None:
        server = PageServer()
        for field, value in change.items():
            setattr(server, field, value)
        heard = Heard()
        async with servers(server):
            pool = pool_of(server)
            async with running(scraper(heard).run(pool)):
                await until(lambda: len(heard.reasons) >= 2)
                assert set(heard.reasons) == {reason}
                assert load_of(pool, server) is None
                assert reachable(pool, server)

    asyncio.run(main())


def test_a_loaded_endpoint_is_asked_more_often_than_an_idle_one() -> None:
    async def main() -> None:
        busy, idle = PageServer(vllm(running=1)), PageServer()
        async with servers(busy, idle):
            pool = pool_of(busy, idle)
            pace = Pace(fast=0.02, idle=0.4)
            async with running(scraper(pace=pace).run(pool)):
                await until(lambda: idle.asked >= 8)
                assert busy.asked > 2 * idle.asked

    asyncio.run(main())


def test_many_endpoints_are_all_scraped() -> None:
    async def main() -> None:
        them = [PageServer() for _ in range(100)]
        async with servers(*them):
            pool = pool_of(*them)
            async with running(scraper(pace=Pace()).run(pool)):
                await until(lambda: all(e.load is not None for e in pool.snapshot()))

    asyncio.run(main())
