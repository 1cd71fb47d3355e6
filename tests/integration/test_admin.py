"""The admin port over real HTTP."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import Any

import aiohttp
import msgspec
import pytest

from epp.ledger import Ledger
from epp.model import Ending, Endpoint, LoraInfo, Outcome
from epp.telemetry.admin import HIDDEN, AdminPages, AdminServer, without_secrets
from epp.telemetry.metrics import Metrics
from tests.support import build


class Dumper:
    def dump_state(self) -> Mapping[str, Any]:
        return {"blocks": 3}


class Broken:
    def dump_state(self) -> Mapping[str, Any]:
        raise RuntimeError("a secret detail")


def endpoints() -> tuple[Endpoint, ...]:
    lora = LoraInfo(frozenset({"b", "a"}), frozenset(), 2)
    return (build.endpoint("a", load=build.load(queued=2, lora=lora)),)


def pages(*, ready: bool = True) -> AdminPages:
    return AdminPages(
        ready=lambda: ready,
        config=lambda: {"plugins": [{"parameters": {"apiKey": "hunter2", "maxTokens": 5}}]},
        endpoints=endpoints,
        plugins=lambda: {"index": Dumper(), "broken": Broken(), "quiet": object()},
        in_flight=lambda _: {"requests": 4},
        state=lambda: {"streams": 7},
    )


def get(
    *paths: str,
    ready: bool = True,
    metrics: Metrics | None = None,
    shown: AdminPages | None = None,
) -> list[tuple[int, bytes]]:
    shown = shown or pages(ready=ready)

    async def main() -> list[tuple[int, bytes]]:
        server = AdminServer("127.0.0.1", 0, metrics or Metrics(process=False), shown)
        port = await server.start()
        try:
            async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
                found = []
                for path in paths:
                    async with session.get(path) as answer:
                        found.append((answer.status, await answer.read()))
                return found
        finally:
            await server.stop()

    return asyncio.run(main())


def test_the_index_lists_the_pages() -> None:
    ((status, body),) = get("/")
    assert status == 200
    assert body.decode().split() == [
        "epp",
        "/debug/config",
        "/debug/decisions",
        "/debug/explain",
        "/debug/live",
        "/debug/plugins/state",
        "/debug/pool",
        "/debug/state",
        "/healthz",
        "/metrics",
        "/readyz",
    ]


def test_health_does_not_depend_on_readiness() -> None:
    assert get("/healthz", "/readyz") == [(200, b"ok\n"), (200, b"ok\n")]
    assert get("/healthz", "/readyz", ready=False) == [(200, b"ok\n"), (503, b"not ready\n")]


def test_metrics_are_served_with_fresh_gauges() -> None:
    metrics = Metrics(process=False)
    metrics.watch_pool("pool", endpoints, Ledger())
    ((status, body),) = get("/metrics", metrics=metrics)
    assert status == 200
    assert b'llm_d_epp_average_queue_size{name="pool"} 2.0' in body


def test_the_configuration_is_shown_without_secrets() -> None:
    ((_, body),) = get("/debug/config")
    assert msgspec.json.decode(body) == {
        "plugins": [{"parameters": {"apiKey": HIDDEN, "maxTokens": 5}}]
    }


def test_what_counts_as_secret() -> None:
    shown = without_secrets(
        {"password": "x", "clientSecret": "x", "hf_token": "x", "tokens": 3, "a": [{"apiKey": ""}]}
    )
    assert shown == {
        "password": HIDDEN,
        "clientSecret": HIDDEN,
        "hf_token": HIDDEN,
        "tokens": 3,
        "a": [{"apiKey": ""}],
    }


def test_the_pool_is_shown_with_what_is_in_flight() -> None:
    ((_, body),) = get("/debug/pool")
    (shown,) = msgspec.json.decode(body)
    assert shown["address"] == "10.0.0.1:8000"
    assert shown["load"]["queued"] == 2
    assert shown["load"]["lora"]["active"] == ["a", "b"]
    assert shown["requests"] == 4


def test_plugins_show_their_state_and_a_broken_one_only_its_errors_name() -> None:
    ((status, body),) = get("/debug/plugins/state")
    assert status == 200
    assert msgspec.json.decode(body) == {
        "index": {"blocks": 3},
        "broken": {"error": "RuntimeError"},
    }


def test_the_processes_own_counts_are_shown() -> None:
    ((_, body),) = get("/debug/state")
    assert msgspec.json.decode(body) == {"streams": 7}


class Kept:
    """Decisions about a request whose id was no UTF-8."""

    def last(self, limit: int) -> list[dict[str, Any]]:
        return [{"request_id": "r\udcff", "limit": limit}]

    def find(self, request_id: str) -> dict[str, Any] | None:
        return self.last(1)[0]


def test_a_request_id_that_is_not_utf_8_leaves_the_pages_readable() -> None:
    kept = msgspec.structs.replace(pages(), decisions=Kept())
    last, one = get("/debug/decisions?limit=3", "/debug/explain?request_id=r", shown=kept)
    assert msgspec.json.decode(last[1]) == [{"request_id": "r\\udcff", "limit": 3}]
    assert msgspec.json.decode(one[1])["request_id"] == "r\\udcff"


def test_what_is_no_http_is_refused_and_not_quoted_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> list[bytes]:
        server = AdminServer("127.0.0.1", 0, Metrics(process=False), pages())
        port = await server.start()
        answers = []
        for junk in (b"GET /secret HTTP/9.9", b"GET / HTTP/1.1\r\nAuthorization: secret\x01\x00"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(junk + b"\r\n\r\n")
            answers.append(await asyncio.wait_for(reader.readline(), 5))
            writer.close()
        await server.stop()
        return answers

    with caplog.at_level(logging.DEBUG):
        assert all(b" 400 " in answer for answer in asyncio.run(main()))
    assert "secret" not in caplog.text


def test_there_is_no_profiler() -> None:
    assert get("/debug/pprof/")[0][0] == 404


def test_a_port_in_use_is_an_error_and_leaves_nothing_behind() -> None:
    async def main() -> None:
        first = AdminServer("127.0.0.1", 0, Metrics(process=False), pages())
        port = await first.start()
        second = AdminServer("127.0.0.1", port, Metrics(process=False), pages())
        try:
            await second.start()
        except OSError:
            return
        finally:
            await second.stop()
            await first.stop()
        raise AssertionError("the port was given twice")

    asyncio.run(main())


def test_b177_health_answers_while_a_big_page_is_made() -> None:
    """Field problem vllm-project/production-stack#1016: work on the loop starves the probes."""
    metrics = Metrics(process=False)
    for i in range(1000):
        request = build.request(model=f"m{i}", target_model=f"m{i}")
        metrics.picked(request, build.pick("a"), now=0.0)
        metrics.ended(request, Ending(Outcome.COMPLETED, 1.0, response_bytes=10))

    async def main() -> list[float]:
        server = AdminServer("127.0.0.1", 0, metrics, pages())
        port = await server.start()
        times = []
        try:
            async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
                page = asyncio.ensure_future(session.get("/metrics"))
                while not page.done():
                    start = time.monotonic()
                    async with session.get("/healthz") as answer:
                        assert answer.status == 200
                    times.append(time.monotonic() - start)
                    await asyncio.sleep(0.01)
                async with page.result() as answer:
                    assert answer.status == 200
                    assert (await answer.read()).count(b"\n") > 100_000
        finally:
            await server.stop()
        return times

    times = asyncio.run(main())
    assert len(times) >= 3  # it really ran beside the page
    assert max(times) < 1.0
