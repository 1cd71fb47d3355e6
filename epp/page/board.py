"""Takes the samples and answers ``/debug/live``.

A second of history costs one sample: sums over the label sets of a few metrics, 10 us with one
model and 1 ms with a thousand. An answer is built at most each half second, however many look at
it, and in pieces, so that a pool of a thousand pods never holds the event loop for long: 4 ms in
all, 1 ms at a time.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from typing import Any

import msgspec

import epp
from epp.clock import Clock
from epp.ledger import Ledger
from epp.model import Endpoint, Outcome
from epp.page import live
from epp.page.traffic import Traffic
from epp.pool import Pool
from epp.telemetry.store import Store
from epp.telemetry.table import PREFIX

SAMPLE_SECONDS = 1.0
KEPT_SAMPLES = 301  #: five minutes
FRESH_SECONDS = 0.5  #: an answer this old is given again
PIECE = 100  #: pods between two turns of the event loop

_FIRST_BYTE = f"{PREFIX}request_ttft_seconds"
_DECISION = f"{PREFIX}scheduler_e2e_duration_seconds"


class Board:
    """The numbers of the live page."""

    def __init__(self, pool: Pool, ledger: Ledger, store: Store, clock: Clock) -> None:
        """Show ``pool``; ``store`` is what is counted."""
        self.traffic = Traffic(clock)  #: an observer: it wants to hear of each request
        self._pool = pool
        self._ledger = ledger
        self._store = store
        self._clock = clock
        self._samples: deque[live.Sample] = deque(maxlen=KEPT_SAMPLES)
        self._building = asyncio.Lock()
        self._page = b""
        self._answered_at = float("-inf")
        self._buckets = live.Buckets(store[_FIRST_BYTE].spec.buckets, store[_DECISION].spec.buckets)

    async def run(self) -> None:
        """Take a sample each second, for ever."""
        while True:
            self.take()
            await asyncio.sleep(SAMPLE_SECONDS)

    def take(self) -> None:
        """Take one sample."""
        self.traffic.turn()
        self._samples.append(self._sample())

    def in_flight(self, endpoint: Endpoint) -> dict[str, int]:
        """What this picker has in flight there, as ``/debug/pool`` shows it."""
        counts = self._ledger.get(endpoint.id)
        return {
            "in_flight_requests": counts.own,
            "in_flight_tokens": counts.own_tokens,
            "peers_requests": counts.heard,
            "peers_tokens": counts.heard_tokens,
        }

    async def answer(self, *, ready: bool) -> bytes:
        """What ``/debug/live`` answers, as JSON; for all that ask within half a second the same."""
        async with self._building:
            if self._clock.now() - self._answered_at >= FRESH_SECONDS:
                self._page = msgspec.json.encode(await self._build(ready=ready))
                self._answered_at = self._clock.now()
        return self._page

    async def _build(self, *, ready: bool) -> dict[str, Any]:
        if not self._samples:
            self.take()
        samples = list(self._samples)
        rows = await self._rows()
        states = Counter(row.state for row in rows)
        return {
            "version": epp.__version__,
            "pool": self._pool.name,
            "ready": ready,
            "summary": live.summarise(samples, self._buckets),
            "in_flight": sum(row.in_flight for row in rows),
            "states": {state: states[state] for state in live.STATES},
            "history": live.history(samples, self._buckets),
            "columns": live.COLUMNS,
            "pods": rows,
        }

    async def _rows(self) -> list[live.Row]:
        endpoints = self._pool.snapshot()
        now = self._clock.now()
        rows: list[live.Row] = []
        for start in range(0, len(endpoints), PIECE):
            rows += [
                live.row(each, self._ledger.get(each.id), self.traffic.recent(each.id), now=now)
                for each in endpoints[start : start + PIECE]
            ]
            await asyncio.sleep(0)
        return rows

    def _sample(self) -> live.Sample:
        total = self.traffic.total
        refused = self._sum("epp_refused_requests_total")
        failed = self._store["epp_ended_requests_total"].number(Outcome.FAILED.value).value
        prompts, prompt_tokens = self._told(f"{PREFIX}request_input_tokens")
        cached, cached_tokens = self._told(f"{PREFIX}request_cached_tokens")
        _, waiting = self._told("epp_ttft_wait_seconds")
        _, picker = self._told("epp_ttft_decision_seconds")
        answers, engine = self._told("epp_ttft_engine_seconds")
        return live.Sample(
            at=self._clock.now(),
            requests=total.requests + refused,
            ended=self._sum("epp_ended_requests_total") + refused,
            errors=failed + refused,
            blocks=total.blocks,
            held=total.held,
            prompts=prompts,
            prompt_tokens=prompt_tokens,
            cached=cached,
            cached_tokens=cached_tokens,
            first_byte=self._counts(_FIRST_BYTE),
            decision=self._counts(_DECISION),
            answers=answers,
            waiting=waiting,
            picker=picker,
            engine=engine,
        )

    def _sum(self, name: str) -> float:
        return sum(number.value for number in self._store[name].numbers.values())

    def _counts(self, name: str) -> tuple[int, ...]:
        family = self._store[name]
        return live.added(
            (histogram.counts for histogram in family.histograms.values()),
            len(family.spec.buckets) + 1,
        )

    def _told(self, name: str) -> tuple[int, float]:
        """How many observations a histogram has, and their sum."""
        cells = self._store[name].histograms.values()
        return sum(sum(cell.counts) for cell in cells), sum(cell.sum for cell in cells)
