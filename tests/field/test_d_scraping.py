"""Field problems of scraping, against real HTTP servers on loopback."""

from __future__ import annotations

import asyncio
import random
import shutil
import ssl
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from epp.clock import SystemClock
from epp.collect.fetch import Source
from epp.collect.pace import Pace
from epp.collect.parse.endpoints import parse_addresses
from epp.collect.parse.engines import Engines
from epp.collect.parse.history import History
from epp.collect.scrape import Scraper, ScrapeSettings
from epp.collect.static import apply
from epp.ledger import Ledger
from epp.model import Endpoint
from epp.pool import Pool
from epp.telemetry.metrics import Metrics
from tests.support import build
from tests.support.certificates import Authority
from tests.support.default_picker import DefaultPicker, spread
from tests.support.pages import Heard, PageServer, running, servers, until, vllm

PACE = Pace(fast=0.02, idle=0.05, asleep=0.5, timeout=0.3, stale_after=0.5)


def scraper(heard: Heard | None = None, *, source: Source | None = None) -> Scraper:
    return Scraper(
        ScrapeSettings(source or Source(), PACE),
        Engines(),
        clock=SystemClock(),
        random=random.Random(0),
        reports=heard,
    )


def pool_of(*them: PageServer) -> Pool:
    pool = Pool()
    apply(pool, (), parse_addresses(",".join(each.address for each in them)))
    return pool


def known(pool: Pool) -> list[Endpoint]:
    return [endpoint for endpoint in pool.snapshot() if endpoint.load is not None]


def test_b071_a_page_without_adapters_is_a_page() -> None:
    """Field problem B071 (llm-d/llm-d-router#926): absence was logged as an error."""

    async def main() -> None:
        server, heard = PageServer(vllm(queued=3, usage=0.5)), Heard()
        async with servers(server):
            pool = pool_of(server)
            async with running(scraper(heard).run(pool)):
                await until(lambda: server.asked >= 5)
                (endpoint,) = known(pool)
                assert endpoint.load is not None
                assert (endpoint.load.queued, endpoint.load.kv_usage) == (3, 0.5)
                assert (heard.reasons, heard.warnings) == ([], [])

    asyncio.run(main())


def test_b073_a_pod_that_stopped_telling_is_not_preferred() -> None:
    """Field problem B073 (kubernetes-sigs/gateway-api-inference-extension#1292).

    A stale pod kept its last score; here its zero load is taken away. If all are stale, requests
    are still routed.
    """

    async def main() -> None:
        silent, one, other = PageServer(), PageServer(vllm(queued=2)), PageServer(vllm(queued=2))
        async with servers(silent, one, other):
            pool = pool_of(silent, one, other)
            async with running(scraper().run(pool)):
                await until(lambda: len(known(pool)) == 3)
                silent.hang = True
                await until(lambda: len(known(pool)) == 2)
                share = spread([DefaultPicker(*pool.snapshot()).send(b"hi") for _ in range(20)])
                assert silent.address not in share
                one.hang = other.hang = True
                await until(lambda: known(pool) == [])
                picker = DefaultPicker(*pool.snapshot())
                assert sum(spread([picker.send(b"hi") for _ in range(9)]).values()) == 9

    asyncio.run(main())


def test_b074_a_slow_page_of_a_single_pod_stops_no_request() -> None:
    """Field problem B074 (llm-d/llm-d-router#2408): one stale scrape counted as saturation."""

    async def main() -> None:
        server = PageServer()
        server.hang = True
        async with servers(server):
            pool = pool_of(server)
            async with running((one := scraper()).run(pool)):
                await until(lambda: one.stale == 1)
                picker = DefaultPicker(*pool.routable())
                assert sum(spread([picker.send(b"hi") for _ in range(5)]).values()) == 5

    asyncio.run(main())


def test_b076_a_fleet_that_cannot_be_scraped_shows_in_a_gauge_and_one_warning() -> None:
    """Field problem B076 (llm-d/llm-d-router PR 2165): nothing showed why dispatch stopped."""

    async def main() -> None:
        them = [PageServer(status=404) for _ in range(3)]
        heard, metrics = Heard(), Metrics(process=False)
        async with servers(*them):
            pool = pool_of(*them)
            metrics.watch_pool("pool", pool.snapshot, Ledger())
            async with running((one := scraper(heard)).run(pool)):
                await until(lambda: one.stale == 3)
                asked = them[0].asked
                await until(lambda: them[0].asked >= asked + 5)
        metrics.refresh()
        page, _ = metrics.render()
        assert b'epp_stale_endpoints{name="pool"} 3.0' in page
        assert len(heard.warnings) == 1
        assert "3 endpoints" in heard.warnings[0] or "3 of 3" in heard.warnings[0]

    asyncio.run(main())


def test_b077_no_series_of_an_endpoint_outlives_it() -> None:
    """Field problem B077 (vllm-project/production-stack#888): its gauge stayed for ever."""
    pool, metrics = Pool(), Metrics(process=False)
    pool.on_forget(metrics.forget)
    metrics.watch_pool("pool", pool.snapshot, Ledger())
    endpoint = build.endpoint("leaver", queued=3)
    pool.put(endpoint)
    metrics.picked(build.request(), build.pick("leaver"), now=0.0)
    metrics.refresh()
    assert b"leaver" in metrics.render()[0]
    pool.remove(endpoint.id)
    metrics.refresh()
    assert b"leaver" not in metrics.render()[0]


OLD, NEW = "vllm:gpu_cache_usage_perc 0.25\n", "vllm:kv_cache_usage_perc 0.5\n"


@pytest.mark.parametrize(
    ("page", "usage"),
    [
        pytest.param(OLD, 0.25, id="old name"),
        pytest.param(NEW, 0.5, id="new name"),
        pytest.param(OLD + NEW, 0.5, id="both"),
        pytest.param("", None, id="none: unknown, not 0"),
    ],
)
def test_b078_cache_usage_under_either_name(page: str, usage: float | None) -> None:
    """Field problem B078 (vllm-project/production-stack#617): read as 0 after an upgrade."""
    text = f"vllm:num_requests_waiting 0\n{page}".encode()
    assert Engines().read(text, 0.0).load.kv_usage == usage


def check_tls(
    tls: ssl.SSLContext, source: Source, act: Callable[[Pool, PageServer], object] | None = None
) -> tuple[list[Endpoint], list[str]]:
    """Scrape one server; what is known after a few scrapes, and why scrapes failed."""

    async def main() -> tuple[list[Endpoint], list[str]]:
        server, heard = PageServer(), Heard()
        async with servers(server, tls=tls):
            pool = pool_of(server)
            async with running(scraper(heard, source=source).run(pool)):
                await until(lambda: len(heard.reasons) >= 3 or bool(known(pool)))
                return known(pool), heard.reasons

    return asyncio.run(main())


def test_b079_a_certificate_of_a_known_authority(tmp_path: Path) -> None:
    """Field problem B079 (kubernetes-sigs/gateway-api-inference-extension#1189)."""
    authority = Authority(tmp_path)
    source = Source(scheme="https", skip_verify=False, ca_cert_path=str(authority.path))
    endpoints, reasons = check_tls(authority.server_context(), source)
    assert (len(endpoints), reasons) == (1, [])


def test_b079_a_self_signed_certificate_with_verification_off(tmp_path: Path) -> None:
    """Field problem B079: no option to skip verification."""
    endpoints, reasons = check_tls(
        Authority(tmp_path).server_context(), Source(scheme="https", skip_verify=True)
    )
    assert (len(endpoints), reasons) == (1, [])


def test_b079_a_certificate_of_another_authority_means_no_load(tmp_path: Path) -> None:
    """Field problem B079: a wrong authority must not look like zero load."""
    right, wrong = Authority(tmp_path), Authority(tmp_path, "wrong")
    source = Source(scheme="https", skip_verify=False, ca_cert_path=str(wrong.path))
    endpoints, reasons = check_tls(right.server_context(), source)
    assert endpoints == []
    assert set(reasons) == {"tls"}


@pytest.mark.parametrize("known_to_server", [True, False], ids=["with", "without"])
def test_b079_mutual_tls_needs_our_certificate(tmp_path: Path, *, known_to_server: bool) -> None:
    """Field problem B079: no client certificate options."""
    authority = Authority(tmp_path)
    certificate, key = authority.issue("client")
    source = Source(
        scheme="https",
        skip_verify=False,
        ca_cert_path=str(authority.path),
        client_cert_path=str(certificate) if known_to_server else "",
        client_key_path=str(key) if known_to_server else "",
    )
    endpoints, reasons = check_tls(authority.server_context(mutual=True), source)
    assert bool(endpoints) is known_to_server
    assert bool(reasons) is not known_to_server


def test_b079_certificates_replaced_while_running_are_used(tmp_path: Path) -> None:
    """Field problem B079: certificates rotate while the picker runs."""
    old, new = Authority(tmp_path, "old"), Authority(tmp_path, "new")
    trusted = tmp_path / "trusted.pem"
    shutil.copy(old.path, trusted)
    source = Source(scheme="https", skip_verify=False, ca_cert_path=str(trusted))

    async def main() -> None:
        server = PageServer()
        async with servers(server, tls=old.server_context("first")):
            pool = pool_of(server)
            async with running(scraper(source=source).run(pool)):
                await until(lambda: len(known(pool)) == 1)
                await server.stop()
                await server.start(new.server_context("second"))
                await until(lambda: known(pool) == [])
                shutil.copy(new.path, trusted)
                await until(lambda: len(known(pool)) == 1)

    asyncio.run(main())


def test_b081_a_sleeping_pod_is_hardly_asked() -> None:
    """Field problem B081 (ggml-org/llama.cpp#20227): scraping kept idle models awake."""

    async def main() -> None:
        asleep = PageServer(vllm() + 'vllm:engine_sleep_state{sleep_state="awake"} 0\n')
        busy = PageServer(vllm(running=1))
        async with servers(asleep, busy):
            pool = pool_of(asleep, busy)
            async with running(scraper().run(pool)):
                await until(lambda: len(known(pool)) == 2)
                start, before = time.monotonic(), asleep.asked
                await until(lambda: busy.asked >= 30)
                at_most = (time.monotonic() - start) / (0.9 * PACE.asleep) + 1
                assert asleep.asked - before <= at_most

    asyncio.run(main())


def test_b082_one_rank_of_eight_is_a_part_of_the_truth() -> None:
    """Field problem B082 (vllm-project/vllm#21260): only the last rank's numbers were exported."""
    engines, history = Engines(), History()
    lines = [f'vllm:num_requests_waiting{{engine="{rank}"}} 5\n' for rank in range(8)]
    whole = history.take(engines.read("".join(lines).encode(), 0.0))
    assert whole.load.queued == 40
    part = history.take(engines.read(lines[7].encode(), 1.0))
    assert part.partial
    assert part.load.queued is None


def test_b084_a_new_pod_without_metrics_gets_some_traffic() -> None:
    """Field problem B084 (vllm-project/aibrix#547): it never got a request."""
    pods = [build.endpoint(f"p{i}", host=f"10.0.0.{i}", load=build.load()) for i in range(3)]
    fresh = build.endpoint("fresh", host="10.0.0.9", queued=None)
    picker = DefaultPicker(*pods, fresh)
    share = spread([picker.send(b"prompt %d" % i) for i in range(200)])
    assert 0 < share["fresh"] <= 50


def test_b084_a_pool_without_metrics_routes_evenly() -> None:
    """Field problem B084 (vllm-project/aibrix#394): nothing could be routed."""

    async def main() -> None:
        them = [PageServer(status=404) for _ in range(3)]
        async with servers(*them):
            pool = pool_of(*them)
            async with running(scraper().run(pool)):
                await until(lambda: all(each.asked >= 2 for each in them))
                picker = DefaultPicker(*pool.routable())
                share = spread([picker.send(b"prompt %d" % i) for i in range(30)])
                assert sorted(share.values()) == [10, 10, 10]

    asyncio.run(main())
