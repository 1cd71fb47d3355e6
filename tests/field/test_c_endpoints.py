"""Field problems of endpoints, as far as listed pools can show them."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

from epp.clock import SystemClock
from epp.collect.discovery import EndpointsFile
from epp.collect.fetch import Source
from epp.collect.pace import Pace
from epp.collect.parse.endpoints import parse_addresses
from epp.collect.parse.engines import Engines
from epp.collect.scrape import Scraper, ScrapeSettings
from epp.collect.static import apply
from epp.ledger import Ledger
from epp.model import EndpointId
from epp.pool import Pool
from epp.telemetry.gauges import pool_gauges
from tests.support import build
from tests.support.default_picker import DefaultPicker, spread
from tests.support.pages import PageServer, running, servers, until, vllm


def follow(path: Path, pool: Pool, report: list[str]) -> EndpointsFile:
    return EndpointsFile(path, report=report.append, poll_seconds=0.01)


def names(pool: Pool) -> list[str]:
    return [endpoint.name for endpoint in pool.routable()]


def write(path: Path, *entries: str) -> None:
    path.write_text("endpoints:\n" + "".join(f"- {{{entry}}}\n" for entry in entries))


def test_b055_ports_may_differ_from_pod_to_pod(tmp_path: Path) -> None:
    """Field problem B055 (llm-d/llm-d-router#2296): pod x port products that do not exist."""
    path, pool = tmp_path / "endpoints.yaml", Pool()
    ranks = [("a", "10.0.0.1", 8000), ("a", "10.0.0.1", 8001)]
    ranks += [("b", "10.0.0.2", 8002), ("b", "10.0.0.2", 8003)]
    write(path, *(f"name: {name}, address: {host}, port: {port}" for name, host, port in ranks))
    asyncio.run(EndpointsFile(path, watch=False).run(pool))
    assert {e.address for e in pool.routable()} == {f"{host}:{port}" for _, host, port in ranks}


def test_b058_an_entry_that_turned_bad_does_not_stop_the_others(tmp_path: Path) -> None:
    """Field problem B058 (vllm-project/production-stack#656): the table was not updated again."""
    path, pool, heard = tmp_path / "endpoints.yaml", Pool(), list[str]()
    write(path, "name: old, address: 10.0.0.1, port: 1", "name: odd, address: 10.0.0.2, port: 1")

    async def main() -> None:
        async with running(follow(path, pool, heard).run(pool)):
            await until(lambda: names(pool) == ["old", "odd"])
            write(path, "name: odd, address: 10.0.0.2", "name: new, address: 10.0.0.3, port: 1")
            await until(lambda: sorted(names(pool)) == ["new", "odd"])

    asyncio.run(main())
    assert len(heard) == 1
    assert "$.endpoints[0]" in heard[0]


def test_b060_a_pod_under_a_new_address_is_used_only_there() -> None:
    """Field problem B060 (vllm-project/production-stack#471): traffic went to the old address."""
    pool = Pool()
    (old,) = parse_addresses("10.0.0.1:8000")
    (new,) = parse_addresses("10.0.0.2:8000")
    apply(pool, (), (old,))
    apply(pool, (old,), (new,))
    assert [e.address for e in pool.routable()] == ["10.0.0.2:8000"]


def test_b066_a_draining_endpoint_gets_nothing_new_and_its_own_work_is_counted(
    tmp_path: Path,
) -> None:
    """Field problem B066 (volcano-sh/kthena#1589): scale-down broke running streams."""
    path, pool, ledger = tmp_path / "endpoints.yaml", Pool(), Ledger()
    write(path, "name: a, address: 10.0.0.1, port: 1", "name: b, address: 10.0.0.2, port: 1")

    async def main() -> None:
        async with running(follow(path, pool, []).run(pool)):
            await until(lambda: names(pool) == ["a", "b"])
            held = ledger.reserve(pool.snapshot()[1], 10)
            labels = "labels: {epp/draining: 'true'}"
            write(
                path,
                "name: a, address: 10.0.0.1, port: 1",
                f"name: b, address: 10.0.0.2, port: 1, {labels}",
            )
            await until(lambda: names(pool) == ["a"])
            gauges = dict(pool_gauges("pool", pool.snapshot, ledger))
            requests = gauges["llm_d_epp_inflight_requests"]()
            assert isinstance(requests, dict)
            assert {labels[0]: value for labels, value in requests.items()}["b-rank-0"] == 1
            held.release()
            assert ledger.get(EndpointId("10.0.0.2:1")).requests == 0

    asyncio.run(main())


def test_b066_requests_go_to_those_that_stay() -> None:
    """Field problem B066 (vllm-project/aibrix#2413): no drain state."""
    leaving = build.endpoint("leaving", host="10.0.0.1", load=build.load(), draining=True)
    staying = build.endpoint("staying", host="10.0.0.2", load=build.load(queued=50))
    picker = DefaultPicker(leaving, staying)
    assert set(spread([picker.send(b"hi") for _ in range(10)])) == {"staying"}


def test_b068_ipv6_has_one_spelling_and_brackets_everywhere() -> None:
    """Field problem B068 (volcano-sh/kthena#1493): the URL was built without brackets."""
    (endpoint,) = parse_addresses("[fd00:0::1]:8000")
    assert endpoint.id == "[fd00::1]:8000"
    assert endpoint.address == "[fd00::1]:8000"
    assert Source().url(endpoint) == "http://[fd00::1]:8000/metrics"
    assert Source(port=9).url(endpoint) == "http://[fd00::1]:9/metrics"
    assert parse_addresses("[FD00:0000::0001]:8000") == (endpoint,)


def sleeping(page: str) -> str:
    return page + 'vllm:engine_sleep_state{engine="0",sleep_state="awake"} 0\n'


def test_b070_a_sleeping_engine_gets_no_requests_and_is_forgotten_once() -> None:
    """Field problem B070 (vllm-project/production-stack#391): ready does not mean awake."""

    async def main() -> None:
        one, other = PageServer(), PageServer(vllm(queued=9))
        async with servers(one, other):
            pool = Pool()
            apply(pool, (), parse_addresses(f"{one.address},{other.address}"))
            forgotten: list[EndpointId] = []
            pool.on_forget(forgotten.append)
            pace = Pace(fast=0.02, idle=0.05, asleep=0.1)
            scraper = Scraper(
                ScrapeSettings(pace=pace), Engines(), clock=SystemClock(), random=random.Random(0)
            )
            async with running(scraper.run(pool)):
                await until(lambda: all(e.load is not None for e in pool.snapshot()))
                assert len(pool.routable()) == 2
                one.page = sleeping(vllm())
                await until(lambda: [e.address for e in pool.routable()] == [other.address])
                asked = one.asked
                await until(lambda: one.asked >= asked + 2)
                assert forgotten == [one.address]
                one.page = vllm()
                await until(lambda: len(pool.routable()) == 2)

    asyncio.run(main())
