"""The live page as it is served: its policy, its structure, and the numbers under it."""

from __future__ import annotations

import asyncio
import re
import time
from html.parser import HTMLParser
from pathlib import Path

import aiohttp
import msgspec

from epp.clock import SystemClock
from epp.commands.asking import Admin
from epp.commands.top import Answer, fetch
from epp.ledger import Ledger
from epp.model import Ending, Outcome
from epp.observe.truth import TruthObserver
from epp.page import document
from epp.page.board import Board
from epp.pool import Pool
from epp.telemetry.admin import AdminPages, AdminServer
from epp.telemetry.metrics import Metrics
from tests.support import build
from tests.support.serving import Serving, with_engines

BROWSER = {"Accept": "text/html,application/xhtml+xml"}
VOID = {"meta", "link", "input", "br", "hr", "img"}


class Strict(HTMLParser):
    """Fails on a tag that is not closed where it must be; collects what tests ask about."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.addresses: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        facts = dict(attrs)
        self.tags.append((tag, facts))
        self.ids += [facts["id"]] if facts.get("id") else []
        self.addresses += [str(facts[name]) for name in ("src", "href") if name in facts]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag, f"</{tag}> at {self.getpos()}"


def parsed() -> tuple[Strict, str]:
    page = document.load().body.decode()
    parser = Strict()
    parser.feed(page)
    parser.close()
    return parser, page


def test_every_tag_is_closed_and_every_id_is_unique() -> None:
    parser, _ = parsed()
    assert parser.open == []
    assert len(parser.ids) == len(set(parser.ids)) > 20


def test_the_script_asks_for_no_id_that_is_not_there() -> None:
    parser, page = parsed()
    asked = set(re.findall(r'byId\("([a-z-]+)"\)', page))
    asked |= set(re.findall(r'(?:show|draw)\("([a-z-]+)"', page))
    assert asked
    assert asked <= set(parser.ids)


def test_nothing_is_fetched_from_outside() -> None:
    parser, page = parsed()
    assert not [a for a in parser.addresses if "//" in a or a.startswith("/")]
    assert set(re.findall(r"https?://[^\"' ]+", page)) == {"http://www.w3.org/2000/svg"}


def test_text_from_elsewhere_is_never_read_as_html() -> None:
    _, page = parsed()
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", page)


def test_fields_have_labels_and_tables_say_what_they_are() -> None:
    parser, page = parsed()
    assert [facts for tag, facts in parser.tags if tag == "html"] == [{"lang": "en"}]
    for tag in ("input", "select"):
        assert page.count(f"<{tag}") == len(re.findall(rf"<label>[^<]+<{tag}", page))
    assert all(
        "aria-label" in f or "aria-labelledby" in f for t, f in parser.tags if t == "section"
    )


def luminance(color: str) -> float:
    """**Source:** WCAG 2.2, relative luminance."""
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_words_have_the_contrast_that_wcag_wants_in_both_themes() -> None:
    _, page = parsed()
    colors = dict(re.findall(r"--(\w+): light-dark\((#\w{6}, #\w{6})\)", page))
    for theme in (0, 1):
        of = {name: luminance(pair.split(", ")[theme]) for name, pair in colors.items()}
        for word in ("text", "quiet", "accent", "good", "warn", "bad"):
            for ground in ("ground", "card"):
                low, high = sorted((of[word], of[ground]))
                assert (high + 0.05) / (low + 0.05) >= 4.5, (word, ground, theme)


def test_the_policy_allows_the_pages_own_script_and_nothing_else() -> None:
    policy = document.policy("<style>a</style><script>b</script>")
    assert policy.startswith("default-src 'none'; connect-src 'self'; img-src data:;")
    # printf b | openssl dgst -sha256 -binary | base64
    assert "script-src 'sha256-PiPoFgA5WUoziU9lZOGxNIu9egCI1CxKy3PurtWcAJ0='" in policy
    assert "unsafe" not in policy


# --- as it is served -----------------------------------------------------------------------


def board(pods: int = 0) -> tuple[Board, Pool]:
    clock = SystemClock()
    pool, ledger = Pool(), Ledger()
    for i in range(pods):
        load = build.load(at=clock.now(), queued=i % 7, running=i % 30, kv_usage=i % 100 / 100)
        pool.put(build.endpoint(f"pod-{i}", host=f"10.0.{i // 250}.{i % 250}", load=load))
    return Board(pool, ledger, Metrics(process=False).store, clock), pool


def served(path: str, headers: dict[str, str] | None = None, *, live: bool = True):
    async def main():
        pages = AdminPages(
            lambda: True, dict, tuple, dict, live=board()[0].answer if live else None
        )
        server = AdminServer("127.0.0.1", 0, Metrics(process=False), pages)
        port = await server.start()
        try:
            async with (
                aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http,
                http.get(path, headers=headers) as answer,
            ):
                return answer.status, dict(answer.headers), await answer.read()
        finally:
            await server.stop()

    return asyncio.run(main())


def test_a_browser_gets_the_page_with_its_policy() -> None:
    status, headers, body = served("/", BROWSER)
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert body == document.load().body
    assert headers["Content-Security-Policy"] == document.load().policy
    assert headers["X-Content-Type-Options"] == "nosniff"


def test_anything_else_gets_the_list_of_pages() -> None:
    status, headers, body = served("/")
    assert (status, headers["Content-Type"]) == (200, "text/plain; charset=utf-8")
    assert b"/debug/live\n" in body


def test_without_a_board_there_is_no_live_page() -> None:
    assert served("/debug/live", live=False)[0] == 404
    assert served("/", BROWSER, live=False)[2].startswith(b"epp\n")


def test_before_anything_happened_nothing_is_measured_as_zero() -> None:
    status, _, body = served("/debug/live")
    answer = msgspec.json.decode(body, type=Answer)
    assert status == 200
    assert (answer.summary.error_share, answer.summary.hit_rate) == (None, None)
    assert (answer.summary.ttft_p50, answer.summary.decision_p99) == (None, None)


def test_viewers_at_the_same_time_share_one_answer() -> None:
    async def main() -> tuple[bytes, ...]:
        shown, _ = board(pods=3)
        return tuple(await asyncio.gather(*(shown.answer(ready=True) for _ in range(5))))

    answers = asyncio.run(main())
    assert all(answer is answers[0] for answer in answers)


def test_a_thousand_pods_cost_a_few_milliseconds_and_not_at_once() -> None:
    async def main() -> tuple[float, int]:
        shown, pool = board(pods=1000)
        for _ in range(301):
            shown.take()
        costs, turns = [], 0
        for _ in range(10):
            pool.remove(pool.snapshot()[0].id)
            shown._answered_at = float("-inf")
            began = time.thread_time()
            asking = asyncio.ensure_future(shown.answer(ready=True))
            turns = 0
            while not asking.done():
                turns += 1
                await asyncio.sleep(0)
            costs.append(time.thread_time() - began)
        return min(costs), turns

    seconds, turns = asyncio.run(main())
    assert turns >= 5  # the event loop serves requests in between
    assert seconds < 0.02, f"{seconds * 1000:.1f} ms"  # 4 ms on a quiet machine


def test_errors_refused_requests_and_engines_tokens_are_counted() -> None:
    async def main() -> Answer:
        metrics, clock, pool = Metrics(process=False), SystemClock(), Pool()
        shown = Board(pool, Ledger(), metrics.store, clock)
        shown.take()
        request, pick = build.request(arrived_at=clock.now()), build.pick("a")
        for outcome in (Outcome.COMPLETED, Outcome.COMPLETED, Outcome.FAILED, Outcome.ABANDONED):
            shown.traffic.picked(request, pick)
            metrics.picked(request, pick, now=clock.now())
            ending = Ending(outcome, clock.now())
            shown.traffic.ended(request, pick, ending)
            metrics.ended(request, ending)
        shown.take()
        return msgspec.json.decode(await shown.answer(ready=False), type=Answer)

    answer = asyncio.run(main())
    assert answer.summary.error_share == 0.25
    assert answer.ready is False
    assert answer.summary.engine_hit_rate is None


def test_what_the_first_byte_waited_for_is_shown() -> None:
    async def main() -> Answer:
        metrics, clock = Metrics(process=False), SystemClock()
        shown = Board(Pool(), Ledger(), metrics.store, clock)
        shown.take()
        observer, pick = TruthObserver(metrics.truth), build.pick("a")
        request = build.request(arrived_at=10.0, waited=2.0)
        for streamed, first in ((True, 16.5), (False, 18.5)):
            ending = Ending(
                Outcome.COMPLETED, 20.0, picked_at=12.5, first_byte_at=first, streamed=streamed
            )
            observer.ended(request, pick, ending)
        shown.take()
        return msgspec.json.decode(await shown.answer(ready=True), type=Answer)

    summary = asyncio.run(main()).summary
    assert (summary.ttft_waiting, summary.ttft_picker, summary.ttft_engine) == (2.0, 0.5, 5.0)


def test_a_running_picker_shows_its_engines(tmp_path: Path) -> None:
    async def step(picker: Serving) -> None:
        for _ in range(200):
            answer = await asyncio.to_thread(fetch, Admin(url=f"127.0.0.1:{picker.ports.admin}"))
            pods = answer.table()
            if all(pod["state"] == "ready" for pod in pods):
                break
            await asyncio.sleep(0.05)
        assert [pod["state"] for pod in pods] == ["ready", "ready"]
        assert [pod["running"] for pod in pods] == [0, 0]
        assert answer.states["ready"] == 2

    with_engines(tmp_path, step)
