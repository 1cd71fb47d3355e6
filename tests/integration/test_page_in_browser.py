"""The live page as a person sees it, in headless Chromium."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec

from epp.clock import SystemClock
from epp.ledger import Ledger
from epp.model import Ending, Endpoint, EndpointId, Outcome
from epp.observe.truth import TruthObserver
from epp.page.board import Board
from epp.pool import Pool
from epp.telemetry.admin import AdminPages, AdminServer
from epp.telemetry.metrics import Metrics
from tests.support import browser, build
from tests.support.browser import Page

Look = Callable[[Page, Pool], Coroutine[Any, Any, None]]


def pods(count: int) -> list[Endpoint]:
    """Pods whose running requests are their number; ``pod-1`` has not been scraped."""
    now = SystemClock().now()
    return [
        build.endpoint(
            f"pod-{i}",
            host=f"10.0.{i // 250}.{i % 250}",
            draining=i == 2,
            queued=None,
            load=None if i == 1 else build.load(at=now, running=i, queued=0, kv_usage=0.25),
        )
        for i in range(count)
    ]


def look(
    folder: Path,
    endpoints: list[Endpoint],
    step: Look,
    decisions: Any = None,
    happened: Callable[[Metrics], None] = lambda _: None,
) -> None:
    async def main() -> None:
        metrics, pool, ledger = Metrics(process=False), Pool("llama"), Ledger()
        for endpoint in endpoints:
            pool.put(endpoint)
        board = Board(pool, ledger, metrics.store, SystemClock())
        ledger.reserve(endpoints[0], 700)
        board.take()
        happened(metrics)
        board.take()
        pages = AdminPages(
            lambda: True, dict, pool.snapshot, dict, live=board.answer, decisions=decisions
        )
        server = AdminServer("127.0.0.1", 0, metrics, pages)
        port = await server.start()
        try:
            async with browser.opened(f"http://127.0.0.1:{port}/", folder) as page:
                await page.until("document.querySelector('#ready')?.innerText === 'ready'")
                await step(page, pool)
                assert page.complaints == []
        finally:
            await server.stop()

    asyncio.run(main())


def test_it_shows_pods_and_a_dash_for_what_is_not_measured(tmp_path: Path) -> None:
    async def step(page: Page, pool: Pool) -> None:
        assert await page.column(1) == ["pod-0", "pod-1", "pod-2", "pod-3"]
        assert await page.column(2) == ["ready", "stale", "draining", "ready"]
        assert await page.column(3) == ["0", "–", "2", "3"]
        assert await page.column(5) == ["25.0 %", "–", "25.0 %", "25.0 %"]
        assert await page.column(6) == ["1", "0", "0", "0"]
        assert await page.column(7) == ["700", "0", "0", "0"]
        assert await page.text("#pool") == "llama"
        assert await page.text("#hits") == "not measured"
        assert await page.text("#ttft") == "not measured"
        assert await page.text("#ttft-parts") == ""
        assert await page.text("#flight") == "1"
        assert await page.text("#states") == "2 ready, 1 draining, 1 stale"

    look(tmp_path, pods(4), step)


def test_it_shows_where_the_time_to_the_first_byte_went(tmp_path: Path) -> None:
    def happened(metrics: Metrics) -> None:
        ending = Ending(Outcome.COMPLETED, 20.0, picked_at=10.75, first_byte_at=10.8, streamed=True)
        request = build.request(arrived_at=10.0, waited=0.25)
        TruthObserver(metrics.truth).ended(request, build.pick("pod-0"), ending)

    async def step(page: Page, pool: Pool) -> None:
        parts = "document.querySelector('#ttft-parts').innerText"
        await page.until(f"{parts} === 'mean: wait 250 ms, picker 500 ms, engine 50 ms'")

    look(tmp_path, pods(1), step, happened=happened)


def test_it_follows_what_changes(tmp_path: Path) -> None:
    async def step(page: Page, pool: Pool) -> None:
        pool.set_reachable(EndpointId("pod-0"), reachable=False)
        await page.until("document.querySelector('#pods td').innerText === 'unreachable'")

    look(tmp_path, pods(1), step)


def test_a_thousand_pods_are_sorted_filtered_and_turned_by_the_page(tmp_path: Path) -> None:
    async def step(page: Page, pool: Pool) -> None:
        assert len(await page.column(1)) == 50
        assert await page.text("#page") == "page 1 of 20"
        await page.click("#pods thead th:nth-child(3) button")
        assert (await page.column(1))[:3] == ["pod-999", "pod-998", "pod-997"]
        assert (
            await page.value("document.querySelector('[aria-sort=descending]').innerText")
            == "Running"
        )
        await page.click("#next")
        assert (await page.column(1))[0] == "pod-949"
        await page.fill("#filter", "pod-99")
        assert (await page.column(1))[0] == "pod-999"
        assert await page.text("#shown") == "11 of 1000"  # pod-99 and pod-990 to pod-999
        await page.fill("#filter", "")
        await page.fill("#state", "draining")
        assert await page.column(1) == ["pod-2"]
        assert await page.value("document.querySelector('#decisions').hidden") is True

    look(tmp_path, pods(1000), step)


def test_what_is_not_measured_is_sorted_last_both_ways(tmp_path: Path) -> None:
    async def step(page: Page, pool: Pool) -> None:
        await page.click("#pods thead th:nth-child(3) button")
        assert (await page.column(1))[-1] == "pod-1"
        await page.click("#pods thead th:nth-child(3) button")
        assert (await page.column(1))[-1] == "pod-1"
        assert (await page.column(1))[0] == "pod-0"

    look(tmp_path, pods(4), step)


class Kept:
    """Decisions as a picker keeps them, of which there is one."""

    def last(self, limit: int) -> list[dict[str, Any]]:
        endpoint = {"endpoint": "10.0.0.0:8000", "scores": [0.5, None]}
        return [{
            "request_id": "r-1", "seconds_ago": 2.0, "model": "llama", "picked": "10.0.0.0:8000",
            "prompt_tokens": 3200, "predicted_cached_tokens": None, "decision_seconds": 0.00036,
            "profiles": [{
                "profile": "default", "candidates": 3,
                "filters": [{"filter": "lora-filter", "removed": 2}],
                "scorers": [{"scorer": "queue-scorer", "weight": 2},
                            {"scorer": "prefix-cache-scorer", "weight": 3}],
                "endpoints": [endpoint],
            }],
            "expected_ttft": {"total_seconds": 0.82},
            "ended": {"outcome": "completed", "status": 200, "ttft_seconds": 1.02, "ttft": {
                "total_seconds": 1.02, "wait_seconds": 0.0, "decision_seconds": 0.00036,
                "remote_prefill_seconds": None, "queue_seconds": 0.3, "prefill_seconds": 0.5,
                "rest_seconds": 0.21964,
            }},
        }][:limit]  # fmt: skip

    def find(self, request_id: str) -> None:
        return None


def test_the_last_decisions_are_shown_with_their_reasons(tmp_path: Path) -> None:
    async def step(page: Page, pool: Pool) -> None:
        await page.until("!document.querySelector('#decisions').hidden")
        cells = "document.querySelectorAll('#decisions tbody td')"
        parts = "wait 0.00 ms, decision 0.36 ms, queue 300 ms, prefill 500 ms, rest 220 ms"
        assert await page.value(f"[...{cells}].map((cell) => cell.innerText)") == [
            "2.0 s ago\nr-1",
            "10.0.0.0:8000\nllama",
            "default: one of 3, queue 0.50 × 2, prefix-cache – × 3, lora-filter removed 2",
            "– of 3,200",
            "0.36 ms",
            f"1.02 s, expected 820 ms\n{parts}",
            "completed 200",
        ]

    look(tmp_path, pods(1), step, decisions=Kept())


def test_a_pods_name_is_text_whatever_it_holds(tmp_path: Path) -> None:
    name = "<img src=x onerror=alert(1)>"

    async def step(page: Page, pool: Pool) -> None:
        assert await page.column(1) == [name]
        assert await page.value("document.images.length") == 0

    look(tmp_path, [msgspec.structs.replace(pods(1)[0], name=name)], step)


def test_a_script_that_is_not_the_pages_own_does_not_run(tmp_path: Path) -> None:
    async def step(page: Page, pool: Pool) -> None:
        await page.value(
            "(() => { const it = document.createElement('script');"
            " it.textContent = 'window.intruder = 1'; document.head.append(it); })()"
        )
        assert await page.value("window.intruder ?? 0") == 0
        assert "Content Security Policy" in page.complaints.pop()

    look(tmp_path, pods(1), step)


def test_it_says_when_the_picker_does_not_answer(tmp_path: Path) -> None:
    async def step(page: Page, pool: Pool) -> None:
        await page.value("window.fetch = () => Promise.reject(new Error('gone'))")
        await page.until("document.querySelector('#ready').innerText.startsWith('no answer since')")
        assert await page.column(1) == ["pod-0"]  # what was known stays, dimmed
        assert await page.value("document.body.classList.contains('old')") is True

    look(tmp_path, pods(1), step)


def test_a_theme_is_chosen_and_kept(tmp_path: Path) -> None:
    async def step(page: Page, pool: Pool) -> None:
        ground = "getComputedStyle(document.body).backgroundColor"
        await page.fill("#theme", "light")
        assert await page.value(ground) == "rgb(245, 246, 248)"
        await page.fill("#theme", "dark")
        assert await page.value(ground) == "rgb(17, 21, 26)"
        await page.call("Page.reload")
        await page.until("document.querySelector('#theme')?.value === 'dark'")
        await page.until(f"{ground} === 'rgb(17, 21, 26)'")

    look(tmp_path, pods(1), step)


def test_a_picture_can_be_taken(tmp_path: Path) -> None:
    async def step(page: Page, pool: Pool) -> None:
        picture = tmp_path / "page.png"
        await page.picture(picture)
        assert picture.read_bytes().startswith(b"\x89PNG")
        assert len(picture.read_bytes()) > 10_000

    look(tmp_path, pods(60), step)
